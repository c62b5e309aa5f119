// The page of a pre-flight: what each 16-bit type takes, a heat map of ops, and the ops themselves as a table.
import { html, nothing, render } from 'lit-html';
import { cellAt, drawHeat, movedBy } from './heat.js';
import { PALETTES } from './map/shades.js';
import { steps } from './verdict.js';
import { count, currentLanguage, figure, languages, local, percent, setLanguage, t } from './words.js';

/** Powers of two that are left, and shares of the bounds, at which the next shade begins. */
const ROOM = [16, 8, 4, 1, 0];
const SHARES = [0.001, 0.01, 0.1, 0.5, 1];
const MOST_ROWS = 50;
const dark = window.matchMedia('(prefers-color-scheme: dark)');

let theme = '';
let preflight = null;
let about = null;
let place = null;
let map = null;
/** Where the pointer or the arrow keys were last, and whether all ops are listed. */
let cell = null;
let isWhole = false;
const isDark = () => (theme ? theme === 'dark' : dark.matches);

function levelOf(row, value) {
  if (value === null || value === undefined) return '-';
  const at = row.what === 'headroom' ? ROOM.findIndex((limit) => value >= limit) : SHARES.findIndex((limit) => value < limit);
  return String(at < 0 ? 5 : at);
}

/** A map of the rows that have values: what is kept in float32 has a corner. */
function heatOf({ rows, ops, types }) {
  const shown = rows.filter((row) => row.values.some((value) => value !== null));
  const kept = new Map(types.map((type) => [type.dtype, new Set(type.kept)]));
  return {
    ops, lines: shown, places: shown.map(placeName), rows: shown.map((row) => row.values.map((value) => levelOf(row, value)).join('')),
    own: shown.map((row) => ops.map((op) => (kept.get(row.dtype).has(op) ? '1' : '0')).join('')),
  };
}

const placeName = (row) => `${t(`preflight.${row.what}`)}, ${row.dtype}`;

function valueText(row, op) {
  const value = row.values[op];
  if (value === null) return t('preflight.no_value');
  if (row.what !== 'headroom') return t('preflight.moves', { share: percent(value) });
  return t(value < 0 ? 'preflight.beyond' : 'preflight.left', { bits: Math.abs(value).toFixed(1) });
}

function head() {
  return html`<header class="top"><h1>precision_tool</h1><span class="soft">${t('preflight.title')}</span><div class="tools">
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

function forecast(type) {
  const kept = [['types', type.kept_types], ['modules', type.kept_modules], ['ops', type.kept]].filter(([, names]) => names.length);
  return html`<article class="verdict ${type.mark}"><p class="kicker">${type.dtype}</p><h2>${local(type.conclusion)}</h2>
    <dl>${kept.map(([name, names]) => html`<dt>${t(`preflight.${name}`)}</dt><dd><bdi>${names.join(', ')}</bdi></dd>`)}
    ${type.facts.map((fact) => html`<dt></dt><dd>${local(fact)}</dd>`)}</dl>${search(type)}</article>`;
}

function search(type) {
  if (!type.steps.length) return nothing;
  return html`<details><summary>${t('preflight.search', { steps: type.steps.length })}</summary><table class="small figures"><thead><tr>${
    ['try', 'kept', 'loss', 'gradients', 'not_finite', 'seconds'].map((one) => html`<th scope="col">${t(`preflight.${one}`)}</th>`)}</tr></thead>
    <tbody>${type.steps.map((step, at) => html`<tr><td>${at + 1}</td><td>${count(step.kept)}</td><td>${step.loss}</td><td>${step.gradients}</td><td>${
    step.not_finite || ''}</td><td>${figure(step.seconds, 2)}</td></tr>`)}</tbody></table></details>`;
}

function heat() {
  if (!map.places.length) return nothing;
  const label = t('preflight.map', { ops: map.ops.length });
  return html`<figure class="heat"><figcaption>${label}</figcaption><div class="heat-body"><div class="heat-axis is-named" aria-hidden="true">${
    map.places.map((one) => html`<span>${one}</span>`)}</div><canvas id="heat-preflight" role="application" tabindex="0"
      aria-label="${label}. ${t('preflight.keys')}" aria-describedby="cell-preflight" @mousemove=${(event) => point(cellAt(map, event))}
      @keydown=${keyDown}></canvas></div><p class="soft" role="status" id="cell-preflight">${cell
  ? `${map.ops[cell.op]}${t('colon')}${map.places[cell.at]}${t('colon')}${valueText(map.lines[cell.at], cell.op)}` : t('preflight.point')}</p></figure>`;
}

function legend() {
  const { levels, grey } = PALETTES[isDark() ? 'dark' : 'light'];
  const list = (name, texts) => html`<ul class="legend" aria-label=${t(name)}><li><b>${t(name)}</b></li>${texts.map((text, at) => html`<li><i class="swatch"
    data-colour=${levels[at]} data-level=${at}></i>${text}</li>`)}</ul>`;
  return html`${list('preflight.headroom', [...ROOM.map((limit) => t('preflight.from', { bits: String(limit) })), t('preflight.overflows')])}
    ${list('preflight.sensitivity', [t('study.less', { value: percent(SHARES[0]) }), ...SHARES.map((limit) => t('study.from', { value: percent(limit) }))])}
    <ul class="legend"><li><i class="swatch" data-colour=${grey} data-level="0"></i>${t('preflight.no_value')}</li><li><b>◤</b>${t('preflight.kept_mark')}</li></ul>`;
}

function opRow(op) {
  const kept = preflight.types.filter((type) => type.kept.includes(preflight.ops[op])).map((type) => type.dtype);
  return html`<tr class=${kept.length ? 'is-different' : ''}><td><bdi>${preflight.ops[op]}</bdi></td><td><bdi>${preflight.op_types[op]}</bdi></td>${
    map.lines.map((row) => html`<td class=${row.what === 'headroom' && row.values[op] < 0 ? 'is-bad' : ''}>${
      row.values[op] === null ? '–' : row.what === 'headroom' ? row.values[op].toFixed(1) : percent(row.values[op])}</td>`)}<td>${
    local(preflight.risks[op])}</td><td>${kept.join(', ')}</td></tr>`;
}

/** How much an op matters: the worst of its shades, then how much of the bounds it takes. */
const worst = (op) => Math.max(...map.rows.map((signs) => signs.charCodeAt(op)));
const taken = (op) => Math.max(0, ...map.lines.map((row) => (row.what === 'headroom' ? 0 : row.values[op] === 'inf' ? Infinity : row.values[op] ?? 0)));

function table() {
  const order = preflight.ops.map((_, op) => op).sort((a, b) => worst(b) - worst(a) || (taken(b) > taken(a)) - (taken(b) < taken(a)) || a - b);
  const rows = isWhole ? order : order.slice(0, MOST_ROWS);
  return html`<section><h3>${t('preflight.ops_title')}</h3><div class="scrolled"><table class="small figures"><thead><tr><th scope="col">${t('op.title')}</th><th scope="col">${t('column.type')}</th>${
    map.places.map((one) => html`<th scope="col">${one}</th>`)}<th scope="col">${t('preflight.risk')}</th><th scope="col">${t('preflight.kept')}</th></tr></thead>
    <tbody>${rows.map(opRow)}</tbody></table></div>${rows.length < order.length ? html`<button id="whole" @click=${() => { isWhole = true; refresh(); }}>${
    t('preflight.all', { count: order.length })}</button>` : nothing}</section>`;
}

function page() {
  const { source, graph, notes } = preflight;
  return html`${head()}<main><div class="tabs"><section class="tab"><div class="reading is-wide">${preflight.types.map(forecast)}${heat()}${legend()}
    ${preflight.next.length ? html`<article class="leaf">${steps(preflight)}</article>` : nothing}${table()}
    <dl class="paths"><dt>${t('preflight.source')}</dt><dd><bdi>${source}</bdi></dd>${graph ? html`<dt>${t('run.graph')}</dt><dd><bdi>${graph}</bdi></dd>` : nothing}</dl>
    ${notes.map((note) => html`<p class="soft"><bdi>${local(note)}</bdi></p>`)}<p class="soft">${about.tool} · ${about.time}</p></div></section></div></main>`;
}

function draw() {
  const canvas = document.getElementById('heat-preflight');
  if (canvas) drawHeat(canvas, map, { isDark: isDark(), star: null, cell });
}

function point(next) {
  cell = next;
  render(page(), place);
  draw();
}

/** Arrow keys go from cell to cell. */
function keyDown(event) {
  const next = movedBy(map, cell ?? { at: 0, op: 0 }, event.key);
  if (!next) return;
  event.preventDefault();
  point(next);
}

function refresh() {
  map = heatOf(preflight);
  render(page(), place);
  for (const swatch of document.querySelectorAll('.swatch')) {
    swatch.style.background = swatch.dataset.colour;
    swatch.style.setProperty('--level', `${swatch.dataset.level * 20}%`);
  }
  draw();
}

/** Shows the pre-flight of a report's data. */
export function showPreflight(holder, data) {
  [place, preflight, about] = [holder, data.preflight, data];
  refresh();
  window.addEventListener('resize', draw);
  dark.addEventListener('change', refresh);
}
