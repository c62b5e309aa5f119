// The page: which part is shown, what is chosen, what the keyboard does.
import { html, nothing, render } from 'lit-html';
import { drawCharts } from './charts.js';
import { load } from './data.js';
import { KINDS, legend, MODES, PALETTES } from './map/shades.js';
import { MapView } from './map/view.js';
import { opView } from './op.js';
import { showPreflight } from './preflight.js';
import { showStudy } from './study.js';
import { opTable, tensorTable } from './tables.js';
import { verdictView } from './verdict.js';
import { currentLanguage, languages, setLanguage, t } from './words.js';

const TABS = ['verdict', 'map', 'ops', 'tensors', 'charts'];
const dark = window.matchMedia('(prefers-color-scheme: dark)');

const state = { result: null, tab: 'verdict', op: -1, search: '', found: [], at: -1, mode: 'own', theme: '', help: false };
const parts = { map: null, ops: null, tensors: null, charts: null };
let data = null;

const isDark = () => (state.theme ? state.theme === 'dark' : dark.matches);

// --- what is done -----------------------------------------------------------------------------------------------------

function choose(op) {
  state.op = op;
  if (parts.map) parts.map.setSelected(op);
  refresh();
  parts.ops?.update();
  parts.tensors?.update();
  document.querySelector('#panel')?.scrollTo(0, 0);
}

function show(op) {
  if (state.tab === 'map') {
    choose(op);
    parts.map?.goTo(op);
  } else {
    choose(op);
  }
}

function locate(op) {
  setTab('map');
  choose(op);
  parts.map?.goTo(op);
}

function setTab(tab) {
  state.tab = tab;
  refresh();
}

function setResult(number) {
  for (const name of Object.keys(parts)) drop(name);
  state.result = data.results[number];
  Object.assign(state, { op: -1, search: '', found: [], at: -1 });
  state.mode = firstMode();
  refresh();
}

function firstMode() {
  const { ops } = state.result;
  const known = (name) => ops[name].some((value) => value !== null);
  return ['own', 'cosine', 'headroom'].find(known) ?? 'dtype';
}

function drop(name) {
  if (!parts[name]) return;
  if (typeof parts[name] === 'function') parts[name]();
  else parts[name].destroy();
  parts[name] = null;
  const holder = document.querySelector(`#tab-${name} .holder`);
  if (holder && (name === 'ops' || name === 'tensors')) render(nothing, holder);
}

function search(word) {
  state.search = word;
  state.found = state.result.search(word);
  // The op of this very name is shown first.
  state.at = Math.max(-1, state.found.indexOf(state.result.byName.get(word.trim())) - 1);
  filterTables();
  parts.map?.setFound(word.trim() ? state.found : []);
  refresh();
}

function filterTables() {
  const found = new Set(state.found);
  const all = !state.search.trim();
  parts.ops?.setFilter((op) => all || found.has(op));
  parts.tensors?.setFilter((row) => all || found.has(state.result.tensors.op[row]));
}

function nextFound(step) {
  if (!state.found.length) return;
  state.at = (state.at + step + state.found.length) % state.found.length;
  show(state.found[state.at]);
}

/** The next op with an error in the order of execution, or the one before. */
function walk(step) {
  const { errors } = state.result;
  if (!errors.length) return;
  const at = errors.findIndex((op) => op >= state.op);
  let next = step > 0 ? (errors[at] === state.op ? at + 1 : at) : (at < 0 ? errors.length : at) - 1;
  if (at < 0 && step > 0) next = 0;
  show(errors[(next + errors.length) % errors.length]);
}

function setTheme() {
  state.theme = isDark() ? 'light' : 'dark';
  document.documentElement.dataset.theme = state.theme;
  parts.map?.setDark(isDark());
  drop('charts');
  refresh();
}

function nextLanguage() {
  setLanguage(languages[(languages.indexOf(currentLanguage()) + 1) % languages.length]);
  drop('charts');
  refresh();
  parts.ops?.update();
  parts.tensors?.update();
  parts.map?.redraw();
}

function setMode(mode) {
  state.mode = mode;
  parts.map?.colourBy(mode);
  refresh();
}

// --- what is shown ----------------------------------------------------------------------------------------------------

/** A sign for the eyes, and the words for who does not see it. */
const labelled = (sign, words) => html`<span aria-hidden="true">${sign}</span><span class="unseen">${words}</span>`;

function head() {
  const { result } = state;
  return html`<header class="top">
    <h1>precision_tool</h1>
    ${data.results.length > 1 ? html`<select aria-label=${t('result')} @change=${(event) => setResult(event.target.selectedIndex)}>
      ${data.results.map((one) => html`<option ?selected=${one === result}>${one.title}</option>`)}</select>` : nothing}
    <nav role="tablist" aria-label=${t('tabs')}>${TABS.map((tab) => html`<button role="tab" id="button-${tab}"
      aria-selected=${state.tab === tab} aria-controls="tab-${tab}" tabindex=${state.tab === tab ? 0 : -1}
      @click=${() => setTab(tab)} @keydown=${tabKey}>${t(`tab.${tab}`)}</button>`)}</nav>
    <div class="search"><input id="search" type="search" .value=${state.search} placeholder=${t('search')} aria-label=${t('search')}
      @input=${(event) => search(event.target.value)} @keydown=${searchKey}><span class="soft" role="status">${
      state.search.trim() ? t('search.found', { count: state.found.length }) : ''}</span></div>
    <div class="tools">
      <button title=${t('walk.previous')} ?disabled=${!result.errors.length} @click=${() => walk(-1)}>${labelled('‹ p', t('walk.previous'))}</button>
      <span class="soft" id="errors" title=${t('walk.about')}>${t('walk.errors', { count: result.errors.length })}</span>
      <button title=${t('walk.next')} ?disabled=${!result.errors.length} @click=${() => walk(1)}>${labelled('n ›', t('walk.next'))}</button>
      <button id="language" lang=${currentLanguage() === 'en' ? 'zh' : 'en'} @click=${nextLanguage}>${currentLanguage() === 'en' ? '中文' : 'English'}</button>
      <button id="theme" aria-label=${t('theme')} title=${t('theme')} @click=${setTheme}>${isDark() ? '☀' : '☾'}</button>
      <button aria-label=${t('help')} title=${t('help')} @click=${() => { state.help = !state.help; refresh(); }}>?</button>
    </div>
  </header>`;
}

function tabKey(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  event.stopPropagation();
  setTab(TABS[(TABS.indexOf(state.tab) + step + TABS.length) % TABS.length]);
  document.getElementById(`button-${state.tab}`).focus();
}

function searchKey(event) {
  event.stopPropagation();
  if (event.key === 'Enter') {
    if (state.tab === 'verdict' || state.tab === 'charts') setTab(state.result.map ? 'map' : 'ops');
    nextFound(event.shiftKey ? -1 : 1);
  } else if (event.key === 'Escape') {
    search('');
    event.target.blur();
  }
}

function legendView() {
  const palette = PALETTES[isDark() ? 'dark' : 'light'];
  const swatch = (colour, text, level, kind = '') => html`<li><i class="swatch ${kind}" data-colour=${colour} data-level=${level}></i><bdi>${text}</bdi></li>`;
  const kinds = parts.map?.shades?.kinds;
  return html`<ul class="legend" tabindex="0" aria-label=${t('map.legend')}>
    ${kinds ? kinds.map((name, at) => swatch(palette.kinds[Math.min(at, KINDS - 1)], name, 0))
    : legend(state.mode).map((text, at) => swatch(palette.levels[at], text, at))}
    ${swatch(palette.grey, t('map.not_compared'), 0)}${swatch(palette.grey, t('map.not_dumped'), 0, 'is-hatched')}${
      state.result.ops.placeholder.some(Boolean) ? swatch(palette.paper, t('map.placeholder'), 0) : nothing}
    <li><b class="mark">★</b>${t('verdict.culprit')}</li><li><b class="bad">✖</b>${t('map.error')}</li><li><b class="bad">→</b>${t('map.path')}</li></ul>`;
}

function mapTab() {
  const { result } = state;
  if (!result.map || !result.inGraph) return html`<p class="reading">${t('map.none')}</p>`;
  const act = (key, work) => html`<button @click=${work}>${t(key)}</button>`;
  return html`<div class="map-tools" role="toolbar" aria-label=${t('tab.map')}>
      <label>${t('map.colour')} <select id="mode" @change=${(event) => setMode(event.target.value)}>${MODES.map((mode) => html`<option
        value=${mode} ?selected=${mode === state.mode}>${t(`mode.${mode}`)}</option>`)}</select></label>
      ${act('map.all', () => parts.map.fit())}${result.culprit >= 0 ? act('map.culprit', () => locate(result.culprit)) : nothing}
      ${act('map.open', () => parts.map.openAll())}${act('map.close', () => parts.map.closeAll())}
      <button aria-label=${t('map.nearer')} @click=${() => parts.map.zoomBy(1.5)}>+</button><button aria-label=${
      t('map.farther')} @click=${() => parts.map.zoomBy(1 / 1.5)}>−</button>
      ${legendView()}
    </div>
    <div class="map-holder holder" tabindex="0" role="application" aria-label=${t('map.label', { count: result.inGraph })}>
      <canvas class="map-canvas"></canvas><canvas class="map-mini" aria-hidden="true"></canvas></div>`;
}

function help() {
  if (!state.help) return nothing;
  const keys = [['/', 'key.search'], ['n p', 'key.walk'], ['Esc', 'key.escape'], ['← ↑ → ↓', 'key.arrows'], ['+ −', 'key.zoom'],
    ['0', 'key.fit'], ['c', 'key.culprit'], ['1 … 5', 'key.tabs']];
  return html`<dialog open class="help" aria-label=${t('help')}><h3>${t('help')}</h3><dl>${keys.map(([key, text]) => html`<dt><kbd>${
    key}</kbd></dt><dd>${t(text)}</dd>`)}</dl><p class="soft">${data.tool} · ${data.time}</p><details><summary>${
    t('licences')}</summary><pre>${document.getElementById('licences').content.textContent}</pre></details><button @click=${
    () => { state.help = false; refresh(); }}>${t('close')}</button></dialog>`;
}

function page() {
  const { result, tab, op } = state;
  const pane = (name, content) => html`<section id="tab-${name}" role="tabpanel" aria-labelledby="button-${name}" class="tab"
    tabindex=${['verdict', 'charts'].includes(name) ? 0 : nothing} ?hidden=${tab !== name}>${name === 'verdict' ? nothing : html`<h2 class="unseen">${t(`tab.${name}`)}</h2>`}${content}</section>`;
  return html`${head()}<main class=${op >= 0 ? 'has-panel' : ''}>
    <div class="tabs">${pane('verdict', verdictView(result, locateOrShow))}${pane('map', mapTab())}${
      pane('ops', html`<div class="holder grid"></div>`)}${pane('tensors', html`<div class="holder grid"></div>`)}${
      pane('charts', html`<div class="holder"></div>`)}</div>
    <aside id="panel" ?hidden=${op < 0} aria-label=${t('op.title')}>${op >= 0 ? opView(result, op, { show, close: () => choose(-1), locate }) : nothing}</aside>
  </main>${help()}`;
}

function locateOrShow(op) {
  if (op < state.result.inGraph) locate(op);
  else show(op);
}

/** What a tab needs is made when it is first opened. */
function prepare() {
  const { result, tab } = state;
  const holder = document.querySelector(`#tab-${tab} .holder`);
  if (!holder || parts[tab]) return;
  const choice = { show, selected: () => state.op };
  if (tab === 'map') {
    parts.map = new MapView(holder, result, { chosen: choose, isDark: isDark() });
    parts.map.colourBy(state.mode);
    parts.map.setSelected(state.op);
    if (state.search.trim()) parts.map.setFound(state.found);
    parts.map.resize();
    refresh();
  } else if (tab === 'ops') {
    parts.ops = opTable(holder, result, choice);
    filterTables();
  } else if (tab === 'tensors') {
    parts.tensors = tensorTable(holder, result, choice);
    filterTables();
  } else if (tab === 'charts') {
    parts.charts = drawCharts(holder, result, show);
  }
}

function refresh() {
  render(page(), document.getElementById('page'));
  for (const swatch of document.querySelectorAll('.swatch')) {
    swatch.style.background = swatch.dataset.colour;
    swatch.style.setProperty('--level', `${swatch.dataset.level * 20}%`);
  }
  prepare();
}

// --- the keyboard -----------------------------------------------------------------------------------------------------

const ARROWS = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };

function keyDown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === 'Escape') {
    if (state.help) state.help = false;
    else if (state.op >= 0) {
      choose(-1);
      return;
    } else if (state.search) search('');
    refresh();
    return;
  }
  if (typing) return;
  const onMap = state.tab === 'map' && parts.map;
  const acts = {
    '/': () => document.getElementById('search').focus(),
    n: () => walk(1),
    p: () => walk(-1),
    c: () => state.result.culprit >= 0 && locateOrShow(state.result.culprit),
    '?': () => { state.help = !state.help; refresh(); },
    ...(onMap ? { '+': () => parts.map.zoomBy(1.5), '-': () => parts.map.zoomBy(1 / 1.5), 0: () => parts.map.fit() } : {}),
  };
  if (acts[event.key]) acts[event.key]();
  else if (/^[1-5]$/.test(event.key)) setTab(TABS[Number(event.key) - 1]);
  else if (onMap && ARROWS[event.key]) parts.map.panBy(...ARROWS[event.key]);
  else return;
  event.preventDefault();
}

// --- the beginning ----------------------------------------------------------------------------------------------------

/** Until the verdict that stands in the page as text is seen; a page in the background is never painted. */
const painted = () => new Promise((done) => {
  requestAnimationFrame(() => setTimeout(done));
  setTimeout(done, 50);
});

async function start() {
  const place = document.getElementById('page');
  try {
    await painted();
    data = await load();
    place.replaceChildren();
    if (data.study || data.preflight) {
      (data.study ? showStudy : showPreflight)(place, data);
      performance.mark('interactive');
      window.report = { data };
      return;
    }
    state.result = data.results.find((one) => one.culprit >= 0) ?? data.results[0];
    if (!state.result) throw new Error(t('empty'));
    state.mode = firstMode();
    refresh();
    document.addEventListener('keydown', keyDown);
    dark.addEventListener('change', () => {
      parts.map?.setDark(isDark());
      refresh();
    });
    performance.mark('interactive');
    // For programs that drive the page.
    window.report = { data, state, parts, show, walk, setTab };
  } catch (error) {
    place.querySelectorAll('.first').forEach((one) => one.remove());
    render(html`<p class="reading" role="alert">${t('broken')} <bdi>${error.message}</bdi></p>`, place);
    throw error;
  }
}

start();
