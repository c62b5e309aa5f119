// Charts over the order of execution.
import { html, nothing, render } from 'lit-html';
import uPlot from 'uplot';
import { castLosses, wayToOverflow } from './ranges.js';
import { count, decade, figure, percent, t } from './words.js';

/** Smallest distance that is drawn: below it all is rounding. */
const LEAST = 1e-9;
/** Smallest and largest own error that is drawn, in parts of what rounding explains: exact, and not finite. */
const [EXACT, ENDLESS] = [1e-3, 1e9];

function styleOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Of the lines of a logarithmic axis those of whole decades. */
const decades = (_, splits) => splits.map((one) => (Number.isInteger(Math.round(Math.log10(one) * 1e6) / 1e6) ? one : null));

/** Letters of a name that an axis has room for. */
const ROOM = 16;
const shortened = (name) => (name.length <= ROOM ? name : `…${name.slice(1 - ROOM)}`);

/** What uPlot draws of a chart; `ops` are those of its points where they are not the places on the x axis. */
function options(width, { key, log, curved, ops, name, unit }, series, show) {
  const ink = styleOf('--text');
  const line = styleOf('--line');
  const grid = { stroke: line, width: 0.5 };
  const opAt = (plot, index) => (ops ? ops[index] : plot.data[0][index]);
  const shortName = (at) => (Number.isInteger(at) && ops[at] !== undefined ? shortened(name(ops[at]).split('/').pop()) : '');
  return {
    width, height: 260,
    scales: { x: { time: false, range: ops ? [-0.5, ops.length - 0.5] : undefined }, y: log ? { distr: 3 } : curved ? { distr: 4, asinh: curved, range: (_, __, most) => [0, Math.max(most * 1.2, 100 * curved)] } : {} },
    cursor: { drag: { x: true, y: false }, focus: { prox: 24 } },
    axes: [
      { stroke: ink, grid, label: t(ops ? `${key}.x` : 'chart.order'), ...(ops ? { space: 96, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500],
        values: (_, ticks) => ticks.map(shortName) } : {}) },
      { stroke: ink, grid: log ? { ...grid, filter: decades } : grid, ticks: log ? { filter: decades } : {}, size: 76, filter: log ? decades : undefined, values: (_, ticks) => ticks.map((one) => (
        one === null || (curved && one < 0) ? '' : log ? decade(one) : `${figure(one, 3)}${unit ?? ''}`)) },
    ],
    series: [{ label: t('chart.op'), value: (plot, _, __, index) => (index === null || index === undefined ? '–' : name(opAt(plot, index))) }, ...series],
    hooks: {
      ready: [(plot) => {
        plot.over.addEventListener('click', () => {
          if (plot.cursor.idx !== null && plot.cursor.idx !== undefined) show(opAt(plot, plot.cursor.idx));
        });
      }],
    },
  };
}

const shown = (unit) => (_, value) => (value === null || value === undefined ? '–' : `${figure(value, 4)}${unit ?? ''}`);

const points = (label, colour, size = 5, unit = '') => ({
  label, stroke: colour, fill: colour, width: 0, paths: () => null, points: { show: true, size, stroke: colour, fill: colour },
  value: shown(unit),
});

/** Points and what joins them; dashed where it is not the NPU's. */
const joined = (label, colour, dash) => ({
  label, stroke: colour, width: 1.5, dash, points: { show: true, size: 7, stroke: colour, fill: colour }, value: shown(),
});

/** Whether no other op has as large a value as this one: a culprit whose own output is correct has none. */
function isPeak([ops, values], op) {
  const own = values[ops.indexOf(op)];
  return own !== undefined && ops.every((other, at) => other === op || values[at] < own);
}

/** An own error in parts of what rounding explains; null where the op was not recomputed. */
function overRounding(ops, op) {
  const [own, rounding] = [ops.own[op], ops.rounding[op]];
  if (own === null) return null;
  const ratio = own === 0 ? 0 : own / (rounding ?? 0);
  return Number.isFinite(ratio) ? Math.min(ENDLESS, Math.max(EXACT, ratio)) : ENDLESS;
}

/** The chart of own errors: the correct ops, those that compute incorrectly, the culprit, and what rounding explains. */
function ownError(result, [at, ratios]) {
  const { ops } = result;
  const isWrong = (op) => ops.state[op] === 'wrong';
  const part = (isIn) => at.map((op, index) => (isIn(op) ? ratios[index] : null));
  const series = () => [points(t('chart.own.right'), styleOf('--wire-strong')), points(t('chart.own.wrong'), styleOf('--bad'), 9),
    points(`★ ${t('verdict.culprit')}`, styleOf('--mark'), 12),
    { label: t('chart.own.rounding'), stroke: styleOf('--text'), width: 1, dash: [2, 3], points: { show: false }, value: () => '1' }];
  return {
    key: 'chart.own', series, log: true, fields: { peak: isPeak([at, ratios], result.culprit) },
    data: [at, part((op) => !isWrong(op)), part(isWrong), part((op) => op === result.culprit), at.map(() => 1)],
  };
}

/** The charts that one result has: their values, and how these are drawn. */
function chartsOf(result) {
  const { ops } = result;
  const charts = [];
  const add = (key, data, colour, more) => {
    const culprit = data[0].map((op, index) => (op === result.culprit ? data[1][index] : null));
    const series = () => [points(t(key), styleOf(colour)), points(`★ ${t('verdict.culprit')}`, styleOf('--mark'), 12)];
    if (data[0].length) charts.push({ key, data: [...data, culprit], series, ...more });
  };
  const collect = (values) => {
    const xs = [];
    const ys = [];
    for (let op = 0; op < result.count; op += 1) {
      const value = values(op);
      if (value === null || value === undefined) continue;
      xs.push(op);
      ys.push(value);
    }
    return [xs, ys];
  };
  const distance = collect((op) => (ops.cosine[op] === null ? null
    : Number.isNaN(ops.cosine[op]) ? 1 : Math.max(LEAST, 1 - ops.cosine[op])));
  add('chart.distance', distance, '--wire-strong', { log: true });
  const own = collect((op) => overRounding(ops, op));
  if (own[0].length) charts.push(ownError(result, own));
  const room = collect((op) => (ops.dtype[op] === 'float16' || ops.headroom[op] === 0 ? ops.headroom[op] : null));
  const way = wayToOverflow(result);
  if (way.length > 1) {
    const series = () => [joined(t('side.npu'), styleOf('--bad')), joined(t('side.golden'), styleOf('--wire-strong'), [6, 4]),
      { label: t('chart.limit'), stroke: styleOf('--text'), width: 1, dash: [2, 3], points: { show: false }, value: () => '0' }];
    charts.push({
      key: 'chart.way', ops: way.map((step) => step.op), end: ops.name[way[way.length - 1].op], series,
      data: [way.map((_, at) => at), way.map((step) => step.npu), way.map((step) => step.golden), way.map(() => 0)],
    });
  }
  add('chart.headroom', room, '--mark');
  const lost = castLosses(result);
  if (lost.length) {
    const series = () => [points(t('chart.below'), styleOf('--wire-strong'), 7, ' %'), points(t('chart.above'), styleOf('--bad'), 7, ' %')];
    charts.push({
      key: 'chart.lost', series, curved: 0.001, unit: ' %',
      data: [lost.map((one) => one.op), lost.map((one) => 100 * one.below), lost.map((one) => 100 * one.above)],
    });
  }
  return charts;
}

function casts(result, show) {
  const { ops } = result;
  const found = [];
  for (let op = 0; op < result.count; op += 1) if (ops.type[op] === 'Cast') found.push(op);
  if (!found.length) return nothing;
  const type = (list) => ((list ?? [])[0] ?? '').split(' ')[0];
  const pairs = new Map();
  for (const op of found) {
    const key = `${type(ops.inputs[op])} → ${type(ops.outputs[op])}`;
    if (!pairs.has(key)) pairs.set(key, []);
    pairs.get(key).push(op);
  }
  const worst = (list) => list.reduce((a, b) => ((ops.own[b] ?? -1) > (ops.own[a] ?? -1) ? b : a));
  return html`<section><h3>${t('chart.casts')}</h3><table class="small"><thead><tr><th>${t('chart.cast')}</th><th>${
    t('count.ops')}</th><th>${t('chart.cast_worst')}</th><th>${t('column.own')}</th></tr></thead><tbody>${
    [...pairs].sort((a, b) => b[1].length - a[1].length).map(([key, list]) => html`<tr><td>${key}</td><td>${
      count(list.length)}</td><td><button class="link" @click=${() => show(worst(list))}><bdi>${
      ops.name[worst(list)]}</bdi></button></td><td>${percent(ops.own[worst(list)])}</td></tr>`)}</tbody></table></section>`;
}

/** Draws the charts of a result into a holder; gives what takes them away again. */
export function drawCharts(holder, result, show) {
  const charts = chartsOf(result);
  render(html`<div class="reading is-wide">${charts.map((chart) => html`<figure class="chart" data-key=${
    chart.key}><figcaption><h3>${t(chart.key)}${chart.end ? html`: <bdi>${chart.end}</bdi>` : nothing}</h3><p class="soft">${
    t(`${chart.key}.about`, chart.fields)}</p></figcaption></figure>`)}${
    charts.length ? nothing : html`<p>${t('chart.nothing')}</p>`}${casts(result, show)}</div>`, holder);
  const figures = [...holder.querySelectorAll('.chart')];
  const plots = figures.map((figureOf, at) => {
    const chart = { ...charts[at], name: (op) => result.ops.name[op] };
    return new uPlot(options(Math.max(300, figureOf.clientWidth - 8), chart, chart.series(), show), chart.data, figureOf);
  });
  const observer = new ResizeObserver(() => plots.forEach((plot, at) => plot.setSize({
    width: Math.max(300, figures[at].clientWidth - 8), height: 260,
  })));
  observer.observe(holder);
  return () => {
    observer.disconnect();
    plots.forEach((plot) => plot.destroy());
    render(nothing, holder);
  };
}
