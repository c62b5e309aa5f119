// The page of a study: who is to blame on which ranks, and the heat maps step × op and rank × op.
import { html, nothing, render } from 'lit-html';
import { PALETTES } from './map/shades.js';
import { count, currentLanguage, has, languages, setLanguage, t } from './words.js';

const LIMITS = ['1e-6', '1e-4', '0.001', '0.01', '0.1'];
const MOST_HEIGHT = 520;
const LEAST_ROW = 1;
const MOST_ROW = 18;
const dark = window.matchMedia('(prefers-color-scheme: dark)');

let theme = '';
let study = null;
let about = null;
let place = null;
/** What the pointer was last at, by map. */
let cells = {};
const isDark = () => (theme ? theme === 'dark' : dark.matches);
const word = (key, fallback) => (has(key) ? t(key) : fallback);
const cause = (name) => word(`cause.${name}`, word(`study.cause.${name}`, name));

function head() {
  return html`<header class="top"><h1>precision_tool</h1><span class="soft">${t('study.title')}</span><div class="tools">
    <button id="language" lang=${currentLanguage() === 'en' ? 'zh' : 'en'} @click=${nextLanguage}>${currentLanguage() === 'en' ? '中文' : 'English'}</button>
    <button id="theme" aria-label=${t('theme')} title=${t('theme')} @click=${nextTheme}>${isDark() ? '☀' : '☾'}</button></div></header>`;
}

function nextLanguage() {
  setLanguage(languages[(languages.indexOf(currentLanguage()) + 1) % languages.length]);
  cells = {};
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
    const key = study.statistics?.length ? 'study.see_statistics' : 'study.clean';
    return html`<section id="study-verdict"><h2>${t('verdict.verdict')}</h2><p>${t(key)}</p></section>`;
  }
  return html`<section id="study-verdict"><h2>${t('verdict.verdict')}</h2>
    <p><b>${t('study.where', { step: culprit.step, rank: culprit.rank })}</b> <bdi class="bad">${culprit.op}</bdi> ${
    culprit.type ? html`<span class="soft">${culprit.type}</span>` : nothing}</p>
    <p>${t(`study.reach.${culprit.reach}`, { wrong: culprit.wrong, right: culprit.right, ranks: culprit.ranks })}</p>
    <p>${t('study.because', { cause: cause(culprit.cause), ground: t(`study.ground.${culprit.ground}`) })}
      ${t('study.sure', { percent: Math.round(100 * culprit.confidence) })}</p>
    <p>${t('study.steps', { steps: culprit.steps })}</p></section>`;
}

function table(key, heads, rows) {
  if (!rows.length) return nothing;
  return html`<section><h3>${t(key)}</h3><table class="small"><thead><tr>${heads.map((one) => html`<th>${t(one)}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td><bdi>${cell}</bdi></td>`)}</tr>`)}</tbody></table></section>`;
}

function heat(map, number) {
  if (!map.ops.length || !map.places.length) return nothing;
  return html`<figure class="heat"><figcaption>${t(`study.map.${map.what}`, { ops: count(map.ops.length) })}</figcaption>
    <canvas id="heat-${map.what}" role="img" aria-label=${t(`study.map.${map.what}`, { ops: count(map.ops.length) })}
      @mousemove=${(event) => point(event, number)}></canvas><p class="soft" role="status" id="cell-${map.what}">${cells[map.what] ?? t('study.point')}</p></figure>`;
}

function legend() {
  const { levels, grey } = PALETTES[isDark() ? 'dark' : 'light'];
  const texts = levels.map((_, at) => (at ? t('study.from', { value: LIMITS[at - 1] }) : t('study.less', { value: LIMITS[0] })));
  return html`<ul class="legend" aria-label=${t('map.legend')}>${[...levels, grey].map((colour, at) => html`<li><i class="swatch"
    data-colour=${colour}></i>${texts[at] ?? t('map.not_compared')}</li>`)}</ul>`;
}

function page() {
  const ofStatistics = (study.statistics ?? []).map((one) => [one.step, one.ranks, one.op,
    one.kinds.map((kind) => t(`evidence.${kind}`)).join('; ')]);
  return html`${head()}<main><div class="tabs"><section class="tab"><div class="reading is-wide">${verdict()}
    ${table('study.statistics', ['study.step', 'study.ranks', 'op.title', 'study.evidence'], ofStatistics)}
    ${table('study.further', ['study.step', 'study.ranks', 'op.title', 'study.why'], study.further.map((one) => [one.step, one.ranks, one.op, cause(one.cause)]))}
    ${study.maps.map(heat)}${legend()}
    ${table('study.failed', ['study.step', 'study.ranks', 'study.why'], study.failures.map((one) => [one.step, one.rank, one.reason]))}
    <p class="soft">${t('study.looked', { leaves: study.leaves, steps: study.steps, ranks: study.ranks, compared: study.compared,
      below: study.below, judged: study.judged, agreed: study.agreed, departed: study.departed })}</p>
    ${study.notes.map((note) => html`<p class="soft"><bdi>${note}</bdi></p>`)}<p class="soft">${about.tool} · ${about.time}</p></div></section></div></main>`;
}

/** Where a place and an op lie on the canvas, in pixels of the page. */
function grid(map, canvas) {
  const width = Math.max(1, canvas.clientWidth);
  const row = Math.min(MOST_ROW, Math.max(LEAST_ROW, MOST_HEIGHT / map.places.length));
  return { width, height: Math.max(1, Math.round(row * map.places.length)), row, column: width / map.ops.length };
}

/** Draws a map; where several cells share a pixel the worst of them is seen. */
function draw(map) {
  const canvas = document.getElementById(`heat-${map.what}`);
  if (!canvas) return;
  const { width, height, row, column } = grid(map, canvas);
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context.scale(scale, scale);
  const { levels, grey } = PALETTES[isDark() ? 'dark' : 'light'];
  const lines = Math.min(map.places.length, Math.max(1, Math.floor(height)));
  const across = Math.min(map.ops.length, Math.max(1, Math.floor(width)));
  for (let line = 0; line < lines; line += 1) {
    const from = Math.floor((line * map.places.length) / lines);
    const to = Math.max(from + 1, Math.floor(((line + 1) * map.places.length) / lines));
    for (let at = 0; at < across; at += 1) {
      const first = Math.floor((at * map.ops.length) / across);
      const last = Math.max(first + 1, Math.floor(((at + 1) * map.ops.length) / across));
      let worst = -1;
      for (let which = from; which < to; which += 1) {
        for (let op = first; op < last; op += 1) worst = Math.max(worst, map.rows[which].charCodeAt(op) - 48);
      }
      context.fillStyle = worst < 0 ? grey : levels[worst];
      context.fillRect((at * width) / across, (line * height) / lines, Math.max(column, width / across) + 0.5, Math.max(row, height / lines) + 0.5);
    }
  }
}

function point(event, number) {
  const map = study.maps[number];
  const { width, height } = grid(map, event.target);
  const op = Math.min(map.ops.length - 1, Math.max(0, Math.floor((event.offsetX * map.ops.length) / width)));
  const which = Math.min(map.places.length - 1, Math.max(0, Math.floor((event.offsetY * map.places.length) / height)));
  const level = map.rows[which].charCodeAt(op) - 48;
  const off = level < 0 ? t('map.not_compared') : level ? t('study.from', { value: LIMITS[level - 1] }) : t('study.less', { value: LIMITS[0] });
  cells[map.what] = t('study.cell', { what: t(`study.${map.what}`), place: String(map.places[which]), op: map.ops[op],
    off: map.own?.[which][op] === '1' ? t('study.own', { off }) : off });
  render(page(), place);
}

function refresh() {
  render(page(), place);
  for (const swatch of document.querySelectorAll('.swatch')) swatch.style.background = swatch.dataset.colour;
  for (const map of study.maps) draw(map);
}

/** Shows the study of a report's data. */
export function showStudy(holder, data) {
  [place, study, about] = [holder, data.study, data];
  refresh();
  window.addEventListener('resize', () => study.maps.forEach(draw));
  dark.addEventListener('change', refresh);
}
