// Builds the page of the report: one script, one style, the licences of what is in them.
// `node build.mjs [DIR]` writes to DIR, by default the assets of the Python package.
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, '..', '..', 'precision_tool', 'lib', 'view', 'assets');

/** Files below a folder, by name. */
function filesBelow(folder) {
  return readdirSync(folder).sort().flatMap((name) => {
    const path = join(folder, name);
    return statSync(path).isDirectory() ? filesBelow(path) : [path];
  });
}

/** What tells whether the built files are of these sources, and of these texts: tests compute the same. */
function digestOfSources() {
  const hash = createHash('sha256');
  for (const language of ['en', 'zh']) {
    const catalogue = JSON.parse(readFileSync(join(here, '..', '..', 'precision_tool', 'lib', 'messages', `${language}.json`)));
    hash.update(JSON.stringify(catalogue.page));
  }
  for (const path of [...filesBelow(join(here, 'src')), join(here, 'package-lock.json'), join(here, 'build.mjs')]) {
    hash.update(`${relative(here, path)}\0`);
    hash.update(readFileSync(path));
  }
  return hash.digest('hex');
}

/** The packages that ended up in the script, each with its version and licence text. */
function licencesOf(inputs) {
  const packages = new Set();
  for (const input of Object.keys(inputs)) {
    const found = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (found) packages.add(found[1]);
  }
  return [...packages].sort().map((name) => {
    const folder = join(here, 'node_modules', name);
    const { version, license } = JSON.parse(readFileSync(join(folder, 'package.json')));
    const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
    if (!file) throw new Error(`${name} has no licence text`);
    return `${name} ${version} (${license})\n\n${readFileSync(join(folder, file), 'utf8').trim()}\n`;
  }).join(`\n${'-'.repeat(72)}\n\n`);
}

/** Only the page's own section of the catalogue, so that other texts change nothing in the build. */
const pageSection = {
  name: 'page section',
  setup({ onLoad }) {
    onLoad({ filter: /messages\/\w+\.json$/ }, ({ path }) => ({
      contents: JSON.stringify({ page: JSON.parse(readFileSync(path)).page }), loader: 'json',
    }));
  },
};

const common = { bundle: true, minify: true, write: false, metafile: true, legalComments: 'none', target: ['es2020'] };
const script = await build({
  ...common, entryPoints: [join(here, 'src', 'main.js')], format: 'iife', charset: 'utf8', absWorkingDir: here,
  plugins: [pageSection],
});
const first = await build({ ...common, entryPoints: [join(here, 'src', 'first.js')], format: 'iife', charset: 'utf8' });
const style = await build({ ...common, entryPoints: [join(here, 'src', 'style.css')], absWorkingDir: here });

mkdirSync(target, { recursive: true });
const banner = `/* built of scripts/page/, sources ${digestOfSources()} */\n`;
writeFileSync(join(target, 'report.js'), banner + script.outputFiles[0].text);
writeFileSync(join(target, 'first.js'), first.outputFiles[0].text.trim());
writeFileSync(join(target, 'report.css'), style.outputFiles[0].text);
writeFileSync(join(target, 'LICENSES.txt'), licencesOf({ ...script.metafile.inputs, ...style.metafile.inputs }));
