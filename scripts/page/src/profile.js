// How precise the device computes, by type of op.
import { html, nothing, svg } from 'lit-html';
import { count, figure, local, t } from './words.js';

/** A relative error as a power of two. */
function power(value) {
  return value > 0 ? html`2<sup>${Math.log2(value).toFixed(1).replace('-', '−')}</sup>` : '0';
}

/** The error of a function over its input; the line in the middle is none. */
function curve(points) {
  if (points.length < 2) return nothing;
  const [low, high] = [points[0][0], points.at(-1)[0]];
  const most = Math.max(...points.map(([, error]) => Math.abs(error)));
  const wide = high - low || 1;
  const place = ([value, error]) => `${(100 * (value - low)) / wide},${12 - (most ? (10 * error) / most : 0)}`;
  const label = t('profile.curve', { low: figure(low, 3), high: figure(high, 3), most: figure(most, 2) });
  return html`<svg class="curve" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label=${label}><title>${label}</title>${
    svg`<path class="zero" d="M0 12H100"></path><polyline points=${points.map(place).join(' ')}></polyline>`}</svg>`;
}

function row(one) {
  const types = one.input_dtype && one.input_dtype !== one.dtype ? `${one.input_dtype} → ${one.dtype}` : one.dtype;
  return html`<tr><td><bdi>${one.type}</bdi></td><td>${types}</td><td>${count(one.ops)}</td><td>${power(one.float32)}</td><td>${
    power(one.own)}</td><td class=${one.accepted ? '' : 'is-bad'}>${power(one.imprecision)}${
    one.imprecision > 0 ? html` <small>(${figure(one.imprecision, 2)})</small>` : nothing}</td><td class=${one.accepted ? '' : 'is-bad'}>${
    one.accepted ? '✓' : '✗'} ${figure(one.acceptance)}</td><td>${one.computed.map((text, at) => html`${at ? ', ' : ''}${local(text)}`)}${
    curve(one.curve)}</td></tr>`;
}

/** The profile of the device: what it comes to, and the table. */
export function profileView(profile) {
  if (!profile) return nothing;
  const columns = ['type', 'dtype', 'ops', 'float32', 'own', 'imprecision', 'accepted', 'computed'];
  const mode = Object.entries(profile.mode).map(([name, value]) => `${name}=${value}`).join(', ');
  return html`<section class="profile"><h3>${t('profile.title')}</h3>
    <ul>${profile.conclusion.map((line, at) => html`<li class=${profile.missed && !at ? 'is-bad' : ''}>${local(line)}</li>`)}</ul>
    <details><summary>${t('profile.types', { types: profile.types.length })}</summary>
      <dl class="paths"><dt>${t('profile.device')}</dt><dd><bdi>${profile.device ?? t('profile.unknown')}</bdi></dd>
        ${mode ? html`<dt>${t('profile.mode')}</dt><dd><bdi>${mode}</bdi></dd>` : nothing}
        <dt>${t('profile.runs')}</dt><dd>${count(profile.runs)}</dd></dl>
      <table class="small"><thead><tr>${columns.map((name) => html`<th scope="col">${t(`profile.${name}`)}</th>`)}</tr></thead>
        <tbody>${profile.types.map(row)}</tbody></table></details></section>`;
}
