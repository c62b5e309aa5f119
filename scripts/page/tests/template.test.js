// `node --test scripts/page/tests`: the same cases as of the catalogue's renderer in Python.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { decade, fill } from '../src/template.js';

const cases = JSON.parse(readFileSync(new URL('templates.json', import.meta.url)));

for (const { template, fields, text } of cases) {
  test(template, () => assert.equal(fill(template, fields), text));
}

test('a brace is missing', () => assert.throws(() => fill('{name', { name: 1 }), /brace/));

test('ticks of a logarithmic axis look alike', () => assert.deepEqual(
  [1e-9, 1e-7, 1e-6, 1e-4, 1e-3, 0.1, 10].map(decade), ['1e-9', '1e-7', '1e-6', '1e-4', '0.001', '0.1', '10'],
));
