// Charts over the order of execution.
import { html, nothing, render } from 'lit-html';
import uPlot from 'uplot';
import { count, figure, percent, t } from './words.js';

/** Smallest distance that is drawn: below it all is rounding. */
const LEAST = 1e-9;

function styleOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Of the lines of a logarithmic axis those of whole decades. */
const decades = (_, splits) => splits.map((one) => (Number.isInteger(Math.round(Math.log10(one) * 1e6) / 1e6) ? one : null));

function options(width, title, series, { log, show }) {
  const ink = styleOf('--text');
  const line = styleOf('--line');
  return {
    width, height: 260, title,
    scales: { x: { time: false }, y: log ? { distr: 3 } : {} },
    cursor: { drag: { x: true, y: false }, focus: { prox: 24 } },
    axes: [
      { stroke: ink, grid: { stroke: line, width: 0.5 }, label: t('chart.order') },
      { stroke: ink, grid: { stroke: line, width: 0.5 }, size: 76, filter: log ? decades : undefined, values: (_, ticks) => ticks.map((one) => (
        one === null ? '' : figure(one, 3))) },
    ],
    series: [{ label: t('chart.op') }, ...series],
    hooks: {
      ready: [(plot) => {
        plot.over.addEventListener('click', () => {
          if (plot.cursor.idx !== null && plot.cursor.idx !== undefined) show(plot.data[0][plot.cursor.idx]);
        });
      }],
    },
  };
}

const points = (label, colour, size = 5) => ({
  label, stroke: colour, fill: colour, width: 0, paths: () => null, points: { show: true, size, stroke: colour, fill: colour },
});

function series(result) {
  const { ops } = result;
  const charts = [];
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
  if (distance[0].length) charts.push({ key: 'chart.distance', data: distance, log: true, colour: '--wire-strong' });
  const own = collect((op) => (ops.own[op] === null ? null : Number.isFinite(ops.own[op])
    ? Math.max(LEAST, ops.own[op]) : 10));
  if (own[0].length) charts.push({ key: 'chart.own', data: own, log: true, colour: '--bad' });
  const room = collect((op) => (ops.dtype[op] === 'float16' || ops.headroom[op] === 0 ? ops.headroom[op] : null));
  if (room[0].length) charts.push({ key: 'chart.headroom', data: room, log: false, colour: '--mark' });
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
  const charts = series(result);
  render(html`<div class="reading is-wide">${charts.map((chart) => html`<figure class="chart" data-key=${
    chart.key}><figcaption class="soft">${t(`${chart.key}.about`)}</figcaption></figure>`)}${
    charts.length ? nothing : html`<p>${t('chart.nothing')}</p>`}${casts(result, show)}</div>`, holder);
  const figures = [...holder.querySelectorAll('.chart')];
  const plots = figures.map((figureOf, at) => {
    const { key, data, log, colour } = charts[at];
    const marked = result.culprit;
    const culprit = data[0].map((op, index) => (op === marked ? data[1][index] : null));
    return new uPlot(options(Math.max(300, figureOf.clientWidth - 8), t(key), [
      points(t(key), styleOf(colour)), points(`★ ${t('verdict.culprit')}`, styleOf('--mark'), 12),
    ], { log, show }), [...data, culprit], figureOf);
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
