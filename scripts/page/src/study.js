// The page of a study: who is to blame on which ranks, and the heat maps step × op and rank × op.
import { html, nothing, render } from 'lit-html';
import { curvesView } from './curves.js';
import { cellAt, drawHeat, movedBy } from './heat.js';
import { PALETTES } from './map/shades.js';
import { commandLine, steps } from './verdict.js';
import { count, currentLanguage, languages, local, setLanguage, t } from './words.js';

const LIMITS = ['1e-6', '1e-4', '0.001', '0.01', '0.1'];
/** Places that are all named beside a map; of more the first and the last. */
const MOST_LABELS = 30;
/** The sign of the first of the other places in `worst`. */
const FIRST_SIGN = 0x2800;
const dark = window.matchMedia('(prefers-color-scheme: dark)');

let theme = '';
let study = null;
let about = null;
let place = null;
/** Where the pointer or the arrow keys were last, by map: the number of a place and of an op. */
let cells = {};
/** What was clicked: a map, and the numbers of a place and of an op. */
let chosen = null;
const isDark = () => (theme ? theme === 'dark' : dark.matches);

function head() {
  return html`<header class="top"><h1>precision_tool</h1><span class="soft">${t('study.title')}</span><div class="tools">
    <button id="language" lang=${currentLanguage() === 'en' ? 'zh' : 'en'} @click=${nextLanguage}>${currentLanguage() === 'en' ? '中文' : 'English'}</button>
    <button id="theme" aria-label=${t('theme')} title=${t('theme')} @click=${nextTheme}>${isDark() ? '☀' : '☾'}</button></div></header>`;
}

function nextLanguage() {
  setLanguage(languages[(languages.indexOf(currentLanguage()) + 1) % languages.length]);
  refresh();
}

function nextTheme() {
  theme = isDark() ? 'light' : 'dark';
  document.documentElement.dataset.theme = theme;
  refresh();
}

function verdict() {
  const { culprit } = study;
  if (!culprit) {
    return html`<article id="study-verdict" class="verdict is-doubtful"><p class="kicker">${t('verdict.verdict')}</p><h2>${local(study.sentence)}</h2>${
      steps(study)}</article>`;
  }
  return html`<article id="study-verdict" class="verdict is-bad"><p class="kicker">${t('verdict.culprit')}</p>
    <h2><bdi>${culprit.op}</bdi> <small>${culprit.type ? html`<bdi>${culprit.type}</bdi> · ` : nothing}${
    t('study.where', { step: String(culprit.step), rank: String(culprit.rank) })}</small></h2>
    <p class="cause"><strong>${local(culprit.cause_text)}</strong>${t('colon')}${local(culprit.ground_text)}</p>
    <dl><dt>${t('study.where_else')}</dt><dd>${local(culprit.reach_text)}</dd>
    <dt>${t('study.wrong_in')}</dt><dd>${t('study.steps', { steps: culprit.steps })}</dd>
    <dt>${t('verdict.sure')}</dt><dd><meter min="0" max="1" value=${culprit.confidence} aria-label=${t('verdict.sure')}></meter>${
    local(culprit.confidence_text)}</dd></dl>${steps(study)}</article>`;
}

function table(key, heads, rows) {
  if (!rows.length) return nothing;
  return html`<section><h3>${t(key)}</h3><table class="small"><thead><tr>${heads.map((one) => html`<th>${t(one)}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td><bdi>${cell}</bdi></td>`)}</tr>`)}</tbody></table></section>`;
}

function heat(map, number) {
  if (!map.ops.length || !map.places.length) return nothing;
  const label = t(`study.map.${map.what}`, { ops: map.ops.length });
  const few = map.places.length <= MOST_LABELS;
  const labels = few ? map.places : [map.places[0], map.places[map.places.length - 1]];
  return html`<figure class="heat"><figcaption>${label}</figcaption><div class="heat-body"><div class="heat-axis ${few ? '' : 'is-ends'}" aria-hidden="true">${
    labels.map((one) => html`<span>${one}</span>`)}</div><canvas id="heat-${map.what}" role="application" tabindex="0" aria-label="${label}. ${t('study.keys')}"
      aria-describedby="cell-${map.what}" @mousemove=${(event) => point(map, cellAt(map, event))} @click=${(event) => choose(number, cellAt(map, event))}
      @keydown=${(event) => keyDown(event, number)}></canvas></div><p class="soft" role="status" id="cell-${map.what}">${cellText(map)}</p></figure>`;
}

function cellText(map) {
  const cell = cells[map.what];
  return cell ? t('study.cell', { what: t(`study.${map.what}`), place: String(map.places[cell.at]), op: map.ops[cell.op], off: offText(map, cell) })
    : t('study.point');
}

function offText(map, { at, op }) {
  const level = map.rows[at].charCodeAt(op) - 48;
  const off = level < 0 ? t('map.not_compared') : level ? t('study.from', { value: LIMITS[level - 1] }) : t('study.less', { value: LIMITS[0] });
  return map.own?.[at][op] === '1' ? t('study.own', { off }) : off;
}

/** The step and rank that a cell is of: where the op is worst of all with that step, or that rank. */
function leafOf(map, { at, op }) {
  const here = map.places[at];
  const worst = map.others?.[map.worst[at].charCodeAt(op) - FIRST_SIGN];
  const of = (one) => one[map.what] === here;
  const other = map.what === 'step' ? 'rank' : 'step';
  const { culprit } = study;
  const first = study.folders.find((one) => of(one) && one.below) ?? study.folders.find(of);
  const found = worst ?? (culprit && of(culprit) ? culprit[other] : first?.[other]);
  return found === undefined ? null : { [map.what]: here, [other]: found };
}

/** What is known of the folder behind the cell that was clicked, and the commands that show more. */
function leaf() {
  if (!chosen) return nothing;
  const map = study.maps[chosen.number];
  const op = map.ops[chosen.op];
  const where = leafOf(map, chosen);
  if (!where) return nothing;
  const known = study.folders.find((one) => one.step === where.step && one.rank === where.rank);
  const { culprit } = study;
  const isCulprits = culprit && culprit.step === where.step && culprit.rank === where.rank;
  const accused = isCulprits && !known?.accused.some((one) => one.op === culprit.op) ? [culprit, ...known?.accused ?? []] : known?.accused ?? [];
  const place = `--step ${where.step} --rank ${where.rank}`;
  return html`<article id="study-leaf" class="leaf" tabindex="-1"><h3>${t('study.where', { step: String(where.step), rank: String(where.rank) })} · <bdi>${op}</bdi></h3><dl>
    <dt>${t('study.off')}</dt><dd>${offText(map, chosen)}</dd>
    ${known ? html`<dt>${t('study.folder')}</dt><dd><bdi>${known.path}</bdi></dd>
      <dt>${t('count.compared')}</dt><dd>${count(known.compared)}</dd><dt>${t('count.below')}</dt><dd>${count(known.below)}</dd>
      <dt>${t('verdict.verdict')}</dt><dd>${known.failure ? html`<bdi>${local(known.failure)}</bdi>` : accused.length ? accused.map((one) => html`<p><bdi>${
      one.op}</bdi> — ${local(one.cause_text)}</p>`) : t(known.judged ? 'study.right' : 'study.not_judged', { count: known.right })}</dd>` : nothing}</dl>
    <h4>${t('op.commands')}</h4>${commandLine(`${study.command} ni ${shellQuoted(op)} ${place}`)}${commandLine(`${study.command} vcs ${place}`)}${
    known ? commandLine(`${study.command} ac -c -lt ${shellQuoted(known.path)} --report report_${where.step}_${where.rank}.html`) : nothing}</article>`;
}

/** A word as a shell takes it. */
const shellQuoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replace(/'/g, "'\"'\"'")}'`);

function legend() {
  const { levels, grey } = PALETTES[isDark() ? 'dark' : 'light'];
  const texts = levels.map((_, at) => (at ? t('study.from', { value: LIMITS[at - 1] }) : t('study.less', { value: LIMITS[0] })));
  const hasOwn = study.maps.some((map) => map.own);
  return html`<ul class="legend" aria-label=${t('map.legend')}>${[...levels, grey].map((colour, at) => html`<li><i class="swatch"
    data-colour=${colour} data-level=${at % levels.length}></i>${texts[at] ?? t('map.not_compared')}</li>`)}
    ${hasOwn ? html`<li><b>◤</b>${t('study.own_mark')}</li>` : nothing}${study.culprit ? html`<li><b class="mark">★</b>${t('verdict.culprit')}</li>` : nothing}</ul>`;
}

function page() {
  const ofStatistics = (study.statistics ?? []).map((one) => [one.step, one.ranks, one.op,
    one.kinds.map((kind) => t(`evidence.${kind}`)).join(t('semicolon'))]);
  return html`${head()}<main><div class="tabs"><section class="tab"><div class="reading is-wide">${verdict()}${study.maps.map(heat)}${legend()}${leaf()}${curvesView(study.curves)}
    ${table('study.statistics', ['study.step', 'study.ranks', 'op.title', 'study.evidence'], ofStatistics)}
    ${table('study.further', ['study.step', 'study.ranks', 'op.title', 'study.why'], study.further.map((one) => [one.step, one.ranks, one.op, local(one.cause_text)]))}
    ${table('study.failed', ['study.step', 'study.ranks', 'study.why'], study.failures.map((one) => [one.step, one.rank, local(one.reason)]))}
    <p class="soft">${t('study.looked', { leaves: study.leaves, steps: study.steps, ranks: study.ranks, compared: study.compared,
      below: study.below, judged: study.judged, agreed: study.agreed, departed: study.departed })}</p>
    ${study.notes.map((note) => html`<p class="soft"><bdi>${local(note)}</bdi></p>`)}<p class="soft">${about.tool} · ${about.time}</p></div></section></div></main>`;
}

/** Draws a map with the culprit and the cell where the arrow keys are. */
function draw(map) {
  const canvas = document.getElementById(`heat-${map.what}`);
  if (!canvas) return;
  const { culprit } = study;
  const star = culprit ? { at: map.places.indexOf(culprit[map.what]), op: map.ops.indexOf(culprit.op) } : null;
  drawHeat(canvas, map, { isDark: isDark(), star, cell: cells[map.what] });
}

function point(map, cell) {
  cells[map.what] = cell;
  render(page(), place);
}

function choose(number, cell) {
  chosen = { number, ...cell };
  point(study.maps[number], cell);
  document.getElementById('study-leaf')?.scrollIntoView({ block: 'nearest' });
}

/** Arrow keys go from cell to cell, Enter chooses one. */
function keyDown(event, number) {
  const map = study.maps[number];
  const last = cells[map.what] ?? { at: 0, op: 0 };
  const next = movedBy(map, last, event.key);
  if (event.key === 'Enter') choose(number, last);
  else if (next) point(map, next);
  else return;
  event.preventDefault();
  draw(map);
}

function refresh() {
  render(page(), place);
  for (const swatch of document.querySelectorAll('.swatch')) {
    swatch.style.background = swatch.dataset.colour;
    swatch.style.setProperty('--level', `${swatch.dataset.level * 20}%`);
  }
  for (const map of study.maps) draw(map);
}

/** Shows the study of a report's data. */
export function showStudy(holder, data) {
  [place, study, about] = [holder, data.study, data];
  refresh();
  window.addEventListener('resize', () => study.maps.forEach(draw));
  dark.addEventListener('change', refresh);
}
