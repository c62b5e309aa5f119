// All about one op.
import { html, nothing, svg } from 'lit-html';
import { commandLine, opLink } from './verdict.js';
import { bits, count, farOff, figure, local, percent, shownAs, t, textOr, typeOf } from './words.js';

const quoted = (name) => (/\s/.test(name) ? `"${name}"` : name);

function histogram(label, one, other, show) {
  if (!one) return nothing;
  const highest = Math.max(1, ...one.counts, ...(other ? other.counts : []));
  const width = 8;
  const bars = one.counts.map((number, at) => svg`<rect x=${at * width} width=${width - 1} y=${
    60 - 58 * scaled(number, highest)} height=${58 * scaled(number, highest)}><title>${count(number)}</title></rect>`);
  return html`<figure class="histogram"><figcaption>${label}</figcaption><svg viewBox="0 0 ${
    one.counts.length * width} 60" role="img" aria-label="${label}: ${t('op.histogram')}" preserveAspectRatio="none">${
    bars}</svg><div class="ends"><span>${show(num(one.low), 4)}</span><span>${show(num(one.high), 4)}</span></div></figure>`;
}

/** Few values stay visible beside many. */
const scaled = (number, highest) => Math.log1p(number) / Math.log1p(highest);
const num = (value) => ({ nan: NaN, inf: Infinity, '-inf': -Infinity }[value] ?? value);

function axes(list) {
  if (!list || !list.length) return nothing;
  return html`<div class="axes"><h5>${t('op.axes')}</h5>${list.map(({ axis, extent, shares }) => {
    const most = Math.max(...shares.map(num), 1e-30);
    return html`<div class="axis"><span>${t('op.axis', { axis, extent })}</span><svg viewBox="0 0 ${shares.length} 10"
      preserveAspectRatio="none" role="img" aria-label=${t('op.axis', { axis, extent })}>${shares.map((share, at) => svg`<rect
      x=${at} width="1" y=${10 - 10 * num(share) / most} height=${10 * num(share) / most}><title>${
      extent === shares.length ? at : t('op.piece', { at: Math.round(at * extent / shares.length) })}: ${
      percent(num(share))}</title></rect>`)}</svg></div>`;
  })}</div>`;
}

function worst(detail) {
  if (!detail.worst || !detail.worst.length) return nothing;
  return html`<table class="small"><caption>${t('op.worst')}</caption><thead><tr><th>${t('op.index')}</th><th>${
    t('side.npu')}</th><th>${t('side.golden')}</th><th>${t('op.error')}</th></tr></thead><tbody>${detail.worst.map((one) => html`<tr><td>[${
    one.index.join(',')}]</td><td>${shownAs(detail.npu?.dtype)(num(one.npu), 7)}</td><td>${
    shownAs(detail.golden?.dtype)(num(one.golden), 7)}</td><td>${shownAs(detail.npu?.dtype)(num(one.error), 4)}</td></tr>`)}</tbody></table>`;
}

const WHOLE = new Set(['nan', 'inf', 'zeros']);
const FIGURES = ['min', 'max', 'mean', 'std', 'nan', 'inf', 'zeros'];

function summaryOf(result, row, side) {
  const { tensors } = result;
  const of = (name) => tensors[`${side}_${name}`][row];
  return {
    min: of('min'), max: of('max'), mean: of('mean'), std: of('std'), nan: of('nan'),
    inf: of('pos_inf') === null ? null : of('pos_inf') + of('neg_inf'), zeros: of('zeros'),
  };
}

function sides(result, row, detail) {
  const { tensors } = result;
  const npu = detail?.npu_summary ?? (row >= 0 ? summaryOf(result, row, 'npu') : null);
  const golden = detail?.golden_summary ?? (row >= 0 ? summaryOf(result, row, 'golden') : null);
  if (!npu && !golden) return nothing;
  const line = (key, one, other) => html`<tr><th scope="row">${key}</th><td>${one}</td><td>${other}</td></tr>`;
  const type = (side) => [detail?.[side]?.dtype ?? (row >= 0 ? tensors[`${side}_type`][row] : ''), detail?.[side]?.layout]
    .filter(Boolean).join(' ') || '–';
  const value = (side, name, one) => {
    const dtype = detail?.[side]?.dtype ?? (row >= 0 ? tensors[`${side}_type`][row] : '');
    const isExact = name === 'min' || name === 'max';
    return WHOLE.has(name) ? count(num(one)) : (isExact ? shownAs(dtype) : figure)(num(one));
  };
  const shape = (side) => (detail?.[side] ? `[${detail[side].shape.join(',')}]` : row >= 0 ? tensors.shape[row] || '–' : '–');
  return html`<table class="small sides"><thead><tr><td></td><th>${t('side.npu')}</th><th>${t('side.golden')}</th></tr></thead><tbody>
    ${line(t('op.dtype'), type('npu'), type('golden'))}${line(t('op.shape'), shape('npu'), shape('golden'))}
    ${FIGURES.map((name) => line(t(`figure.${name}`), value('npu', name, npu?.[name]), value('golden', name, golden?.[name])))}</tbody></table>`;
}

function metric(name, value, dtype) {
  if (name === 'relative_distance') return percent(value);
  if (name === 'mismatches') return count(value);
  return (name === 'max_absolute_error' ? shownAs(dtype) : figure)(value, 4);
}

function tensor(result, row, detail, op) {
  const { tensors } = result;
  const slot = detail?.slot ?? tensors.slot[row];
  const agree = row >= 0 ? tensors.agree[row] : null;
  const reason = row >= 0 ? tensors.reason[row] : detail?.note;
  const status = row >= 0 ? tensors.status[row] : '';
  const metrics = row >= 0 ? ['max_absolute_error', 'relative_distance', 'max_relative_error', 'mismatches']
    .filter((name) => tensors[name][row] !== null) : [];
  const at = row >= 0 ? tensors.worst_at[row] : '';
  // An output that agrees accuses nobody, unless the op is to blame all the same.
  const isOutput = slot.startsWith('output');
  const isBlamed = isOutput && isAccused(result, op);
  return html`<details class="tensor" ?open=${agree === false || (isOutput && (isBlamed || agree !== true))}>
    <summary><b>${slot}</b> ${row >= 0 && tensors.cosine[row] !== null ? html`<span class=${agree === false ? 'is-bad' : isBlamed ? ''
      : 'is-good'}>${agree === false ? '✖ ' : isBlamed ? '' : '✓ '}${farOff(result, row)}</span>`
    : html`<span class="soft">${textOr(`status.${status}`, t('op.not_compared'))}</span>`}</summary>
    ${metrics.length ? html`<p class="metrics">${metrics.map((name) => html`<span>${t(`column.${name}`)} <b>${
      metric(name, tensors[name][row], tensors.npu_type[row])}</b></span>`)}${
      at ? html`<span>${t('op.at')} <b>${at}</b></span>` : nothing}</p>` : nothing}
    ${reason ? html`<p class="note"><bdi>${local(reason)}</bdi></p>` : nothing}
    ${sides(result, row, detail)}
    ${detail ? html`<div class="histograms">${histogram(t('side.npu'), detail.npu_histogram, detail.golden_histogram,
      shownAs(detail.npu?.dtype))}${histogram(t('side.golden'), detail.golden_histogram, detail.npu_histogram,
      shownAs(detail.golden?.dtype))}</div>
      ${axes(detail.axes)}${worst(detail)}${detail.too_large ? html`<p class="note">${t('op.too_large')}</p>` : nothing}
      ${['npu', 'golden'].map((side) => (detail[side] ? html`<p class="path"><bdi>${detail[side].path}</bdi></p>` : nothing))}`
    : nothing}
    ${row >= 0 && isOutput ? commandLine(`${result.command} pt ${quoted(`${result.ops.name[op]}:${slot}`)}`) : nothing}
  </details>`;
}

/** Whether the verdict blames an op, or recomputing does: what comparing says of it is no praise then. */
const isAccused = (result, op) => op === result.culprit || result.suspects.has(op) || ['wrong', 'beyond'].includes(result.ops.state[op]);

/** What is known of overflows of the op beside the verdict: statuses of the device, and tensors at the limit. */
function overflows(result, op) {
  const notes = result.overflow_notes[op] ?? [];
  if (!notes.length) return nothing;
  return html`<section class="judged is-beyond"><h4>${t('op.overflow')}</h4>${notes.map((note) => html`<p><bdi>${local(note)}</bdi></p>`)}</section>`;
}

function judged(result, op) {
  const { ops } = result;
  const state = ops.state[op];
  if (!state) return nothing;
  const over = result.overflowed[op];
  const fact = (key, value) => (value === null ? nothing : html`<dt>${t(key)}</dt><dd>${percent(value)}</dd>`);
  const ratio = (key, value) => (value === null ? nothing : html`<dt>${t(key)}</dt><dd>${figure(value, 4)}×</dd>`);
  return html`<section class="judged is-${state}"><h4>${t(`state.${state}`)}</h4>
    ${ops.reason[op] ? html`<p><bdi>${local(ops.reason[op])}</bdi></p>` : nothing}
    ${over ? html`<p>${t('op.overflowed', { count: over.count, largest: num(over.largest) })}</p>` : nothing}
    ${ops.how[op] ? html`<p>${t('op.how', { how: ops.how[op] })}</p>` : nothing}
    <dl>${fact('op.own', ops.own[op])}${fact('op.rounding', ops.rounding[op])}${fact('op.fed', ops.fed[op])}${
    fact('op.benchmark_own', ops.benchmark_own[op])}${ratio('op.worst_of_rounding', ops.worst_of_rounding[op])}${
    ratio('op.beyond', ops.beyond[op])}</dl></section>`;
}

/** A name that breaks into lines behind its points. */
const breakable = (name) => (name.length > 400 ? name : name.split(/(?<=[./])/).map((part) => html`${part}<wbr>`));

/** What was recorded of an op's tensors, where nothing was compared. */
function recorded(list) {
  const column = (key) => html`<th>${t(key)}</th>`;
  return html`<table class="small figures"><caption>${t('op.recorded')}</caption><thead><tr>${
    ['figure.min', 'figure.max', 'figure.mean', 'op.norm'].map(column)}</tr></thead><tbody>${
    list.map(([slot, ...figures]) => html`<tr><th scope="rowgroup" colspan="4"><bdi>${slot}</bdi></th></tr><tr>${
      figures.map((value) => html`<td>${figure(num(value), 4)}</td>`)}</tr>`)}</tbody></table>`;
}

const MOST_LINKS = 24;

function links(result, list, key, show) {
  if (!list.length) return nothing;
  const { ops } = result;
  return html`<section><h4>${t(key)} (${count(list.length)})</h4><ul class="links">${list.slice(0, MOST_LINKS).map((one) => html`<li><button
    class="link" @click=${() => show(one.op)}><bdi>${ops.name[one.op]}</bdi></button> <small>${typeOf(ops, one.op)}${
    one.slot < 0 ? ` · ${t('op.control')}` : ` · ${t('op.wire', { output: one.output, slot: one.slot })}`}${
    ops.agree[one.op] === false ? ' ✖' : ''}</small></li>`)}${list.length > MOST_LINKS ? html`<li class="soft">${
    t('more', { count: list.length - MOST_LINKS })}</li>` : nothing}</ul></section>`;
}

function attributes(result, op) {
  const found = Object.entries(result.attributes[op] ?? {});
  if (!found.length) return nothing;
  return html`<details><summary>${t('op.attributes')} (${found.length})</summary><table class="small attributes"><tbody>${
    found.map(([name, value]) => html`<tr><th scope="row"><bdi>${name}</bdi></th><td><bdi>${value}</bdi></td></tr>`)}</tbody></table></details>`;
}

/** The panel beside the map and the tables. */
export function opView(result, op, { show, close, locate }) {
  const { ops } = result;
  const name = ops.name[op];
  const details = result.details[op] ?? [];
  const known = new Set(details.map((one) => one.slot));
  const rows = new Map(result.tensorsOf[op].map((row) => [result.tensors.slot[row], row]));
  const slots = [...new Set([...result.tensorsOf[op].map((row) => result.tensors.slot[row]), ...known])];
  slots.sort((a, b) => b.startsWith('output') - a.startsWith('output'));
  const fact = (key, value) => (value === null || value === undefined || value === '' || (Array.isArray(value) && !value.length)
    ? nothing : html`<dt>${t(key)}</dt><dd><bdi>${Array.isArray(value) ? value.join(', ') : value}</bdi></dd>`);
  const command = `ni ${quoted(name)}`;
  const repro = `repro ${quoted(name)}`;
  return html`<div class="op" role="region" aria-label=${t('op.title')}>
    <header><h3><bdi>${breakable(name)}</bdi></h3><div class="op-tools">${op < result.inGraph ? html`<button @click=${
      () => locate(op)}>${t('op.locate')}</button>` : nothing}<button class="close" aria-label=${t('close')} @click=${close}>✕</button></div></header>
    <p class="badges"><span class="badge">${typeOf(ops, op)}</span>${
      ops.recompute[op] ? html`<span class="badge">${t('op.recompute')}</span>` : nothing}${op === result.culprit ? html`<span class="badge is-bad">★ ${
      t('verdict.culprit')}</span>` : nothing}${ops.agree[op] === false ? html`<span class="badge is-bad">✖ ${t('op.below')}</span>`
    : ops.agree[op] === true ? isAccused(result, op) ? nothing : html`<span class="badge is-good">✓ ${t('op.agrees')}</span>`
      : ops.placeholder[op] ? nothing
      : html`<span class="badge">${ops.status[op] === 'no_npu_dump' ? t('op.not_dumped') : t('op.not_compared')}</span>`}</p>
    ${ops.placeholder[op] ? html`<p class="soft">${t(`placeholder.about.${ops.type[op]}`)}</p>` : nothing}
    ${judged(result, op)}
    ${overflows(result, op)}
    <dl class="facts">${fact('op.module', ops.module[op])}${fact('op.source', ops.source[op])}${
      fact('op.arguments', ops.arguments[op])}${fact('op.id', ops.id[op])}${fact('pass', ops.pass[op])}${fact('op.originals', ops.originals[op])}${
      fact('op.outputs', ops.outputs[op])}${fact('op.inputs', ops.inputs[op])}${fact('op.kernel', ops.kernel[op])}${
      fact('op.stream', ops.stream[op])}${fact('op.graph', ops.graph[op])}${
      ops.headroom[op] === null ? nothing : fact('op.headroom', bits(ops.headroom[op]))}</dl>
    ${ops.placeholder[op] ? nothing : html`<section><h4>${t('op.tensors')}</h4>${slots.length ? slots.map((slot) => tensor(result, rows.get(slot) ?? -1,
      details.find((one) => one.slot === slot), op)) : result.recorded[op]?.length ? recorded(result.recorded[op])
      : html`<p class="soft">${t(result.compared ? 'op.no_tensors' : 'op.no_values')}</p>`}</section>`}
    ${links(result, result.fed[op], 'op.fed_by', show)}
    ${links(result, result.feeds[op], 'op.feeds', show)}
    ${attributes(result, op)}
    <section><h4>${t('op.commands')}</h4>${commandLine(`${result.command} ${command}`)}${
      ops.placeholder[op] ? nothing : commandLine(`${result.command} ${repro}`)}</section>
  </div>`;
}

export { opLink };
