// Curves over steps as small multiples: the ranks as a band, those that leave it, and the benchmark.
import { html, nothing, svg } from 'lit-html';
import { figure, local, t } from './words.js';

const WIDTH = 100;
const HEIGHT = 40;
/** From this ratio on positive values are drawn as logarithms. */
const LOGARITHMIC = 100;

const known = (values) => values.filter((value) => value !== null);

/** Where a value stands: a function of it, the ends that are named, and whether it goes by logarithms. */
function scale(one) {
  const values = [...known(one.low), ...known(one.high), ...known(one.benchmark ?? []), ...one.lines.flatMap((line) => known(line.values))];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const isLog = low > 0 && high / low > LOGARITHMIC;
  const of = isLog ? Math.log : (value) => value;
  const wide = of(high) - of(low);
  return { low, high, isLog, isEmpty: !values.length, y: (value) => (wide ? HEIGHT - 2 - ((HEIGHT - 4) * (of(value) - of(low))) / wide : HEIGHT / 2) };
}

/** The middle of a step; the first and the last reach to the sides. */
const across = (at, steps) => (WIDTH * (at + 0.5)) / steps;

/** Pieces of a line without the steps that have no value, as points. */
function pieces(values, y) {
  const found = [];
  values.forEach((value, at) => {
    if (value === null) return;
    const half = WIDTH / values.length / 2;
    const x = across(at, values.length);
    if (at === 0 || values[at - 1] === null) found.push([[x - half, y(value)]]);
    found.at(-1).push([x, y(value)]);
    if (at === values.length - 1 || values[at + 1] === null) found.at(-1).push([x + half, y(value)]);
  });
  return found;
}

const points = (list) => list.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`).join(' ');
const lines = (kind, values, y) => pieces(values, y).map((piece) => svg`<polyline class=${kind} points=${points(piece)}></polyline>`);

function band(one, y) {
  const highs = pieces(one.high, y);
  return pieces(one.low, y).map((piece, at) => svg`<polygon class="band" points=${points([...piece, ...[...highs[at]].reverse()])}></polygon>
    <polyline class="edge" points=${points(piece)}></polyline><polyline class="edge" points=${points(highs[at])}></polyline>`);
}

/** The first and the last step, and those that are marked; of two that would cover each other the marked one. */
function axis(steps, marks) {
  const ends = [...new Set([0, steps.length - 1])].filter((at) => !marks.some((mark) => Math.abs(across(mark, steps.length) - across(at, steps.length)) < 25));
  const side = (x) => (x < 15 ? 'start' : x > 85 ? 'end' : 'middle');
  const text = (at, label, kind) => {
    const x = across(at, steps.length);
    const anchor = steps.length > 1 && kind === 'end' ? (at ? 'end' : 'start') : side(x);
    return svg`<text class=${kind} x="${anchor === 'start' ? 0 : anchor === 'end' ? 100 : x}%" y="12" text-anchor=${anchor}>${label}</text>`;
  };
  return html`<svg class="ticks" aria-hidden="true">${ends.map((at) => text(at, steps[at], 'end'))}${marks.map((at) => text(at, `▲ ${steps[at]}`, 'marked'))}</svg>`;
}

function curve(one, steps) {
  const { low, high, isLog, isEmpty, y } = scale(one);
  const marks = [...new Set(one.leaves.map((leaving) => leaving.at))];
  const label = `${local(one.role)} ${local(one.name)} ${local(one.figure)}`;
  return html`<figure class="multiple ${marks.length ? 'is-off' : ''}"><figcaption title=${local(one.tensor)}><small>${local(one.role)}</small> <bdi>${local(one.name)}</bdi> <small>${
    local(one.figure)}${isLog ? ` · ${t('curves.log')}` : ''}</small></figcaption>
    ${isEmpty ? html`<p class="soft">${t('curves.nothing')}</p>` : html`<div class="plot"><div class="ends"><span>${figure(high, 4)}</span><span>${figure(low, 4)}</span></div>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=${[label, ...one.leaves.map((leaving) => local(leaving.text))].join('. ')}>
    ${marks.map((at) => svg`<path class="mark" d="M${across(at, steps.length)} 0V${HEIGHT}"></path>`)}
    ${one.bad.map((at) => svg`<path class="not-finite" d="M${across(at, steps.length)} 0V${HEIGHT}"></path>`)}
    ${band(one, y)}${one.benchmark ? lines('golden', one.benchmark, y) : nothing}${one.lines.map((line) => lines('left', line.values, y))}</svg></div>
    ${axis(steps, marks)}`}
    ${one.leaves.map((leaving) => html`<p class="leaving">${local(leaving.text)}</p>`)}</figure>`;
}

/** Small multiples of variables, gradients and the loss; nothing without any. */
export function curvesView(curves) {
  if (!curves) return nothing;
  return html`<section id="curves" class="curves"><h3>${t('curves.title')}</h3><p><strong>${local(curves.conclusion)}</strong></p>
    <ul class="legend"><li><i class="swatch-line is-band"></i>${t(curves.ranks > 1 ? 'curves.ranks' : 'curves.rank')}</li>
    <li><i class="swatch-line is-left"></i>${t('curves.left')}</li><li><i class="swatch-line is-golden"></i>${t('curves.benchmark')}</li>
    <li><i class="swatch-line is-bad"></i>NaN, Inf</li></ul>
    <div class="multiples">${curves.curves.map((one) => curve(one, curves.steps))}</div>
    ${curves.more ? html`<p class="soft">${t('curves.more', { count: curves.more })}</p>` : nothing}</section>`;
}
