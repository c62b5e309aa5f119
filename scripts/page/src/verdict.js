// The first screen: who is to blame, why, how sure, what to do, and what the run was.
import { html, nothing } from 'lit-html';
import { copy } from './csv.js';
import { profileView } from './profile.js';
import { count, farOff, figure, local, statusOf, t, textOr } from './words.js';

/** A button that copies a line, and says so. */
export function copyButton(line) {
  return html`<button class="copy" title=${t('copy')} aria-label="${t('copy')}: ${line}" @click=${async (event) => {
    const button = event.currentTarget;
    const done = await copy(line);
    button.textContent = done ? t('copied') : t('copy_failed');
    setTimeout(() => { button.textContent = t('copy'); }, 1500);
  }}>${t('copy')}</button>`;
}

/** A line to be typed, with the button that copies it. */
export const commandLine = (line) => html`<p class="command"><code class="line"><bdi>${line}</bdi></code>${copyButton(line)}</p>`;

/** What to do next. */
export function steps(verdict) {
  if (!verdict.next.length) return nothing;
  return html`<h3>${t('verdict.next')}</h3><ol class="steps">${verdict.next.map((step) => html`<li>
    <span>${local(step.why)}</span>
    ${step.line ? commandLine(step.line) : nothing}</li>`)}</ol>`;
}

function blame(result, show) {
  const { verdict } = result;
  const first = verdict.suspects[0];
  const others = verdict.suspects.slice(1);
  return html`<article class="verdict is-bad">
    <p class="kicker">${t('verdict.culprit')}</p>
    <h2><bdi>${opLink(result, first.culprit, show)}</bdi>${first.type ? html` <small>${first.type}</small>` : nothing}${
      verdict.run ? html` <small>${t('verdict.of_run', { run: verdict.run })}</small>` : nothing}</h2>
    <p class="cause"><strong>${local(first.cause_text)}</strong>${t('colon')}${local(first.sentence)}</p>
    <dl>
      ${[['pass', first.pass], ['op.module', first.module], ['op.source', first.source]].map(([key, of]) => (of
    ? html`<dt>${t(key)}</dt><dd><bdi>${of}</bdi></dd>` : nothing))}
      ${first.why.length ? html`<dt>${t('verdict.why')}</dt><dd>${first.why.map((one) => html`<p>${local(one)}</p>`)}</dd>`
    : nothing}
      ${first.also.length ? html`<dt>${t('verdict.also')}</dt><dd>${first.also.map((name, at) => html`${
        at ? ', ' : ''}<bdi>${opLink(result, name, show)}</bdi>`)}</dd>` : nothing}
      <dt>${t('verdict.sure')}</dt><dd><meter min="0" max="1" value=${verdict.confidence} aria-label=${
        t('verdict.sure')}></meter>${local(first.confidence_text)}</dd>
      <dt>${t('verdict.spoils')}</dt><dd>${local(first.affects)}</dd>
    </dl>
    ${steps(verdict)}
    ${others.length ? html`<h3>${t('verdict.besides')}</h3><ul>${others.map((one) => html`<li><bdi>${
      opLink(result, one.culprit, show)}</bdi> — <strong>${local(one.cause_text)}</strong>${
      one.why.length ? html`${t('colon')}${local(one.why[0])}` : nothing}</li>`)}</ul>` : nothing}
  </article>`;
}

/** Ops that are named of those that an error goes through. */
const MOST_NAMED = 8;

/** What follows from the culprit: the ops that its error goes through. */
function follows(result, show) {
  const { ops } = result;
  const below = result.error_path.filter((op) => op !== result.culprit && ops.agree[op] === false);
  if (!below.length) return nothing;
  const worst = (op) => result.tensorsOf[op].filter((row) => result.tensors.agree[row] === false && result.tensors.slot[row].startsWith('output'))
    .reduce((a, b) => (result.tensors.cosine[b] < result.tensors.cosine[a] ? b : a));
  return html`<section class="follows"><h3>${t('verdict.follows')}</h3><ol>${below.slice(0, MOST_NAMED).map((op) => html`<li><bdi>${
    opLink(result, ops.name[op], show)}</bdi> <small class="soft">${ops.type[op]} · ${farOff(result, worst(op))}</small></li>`)}${
    below.length > MOST_NAMED ? html`<li class="soft">${t('more', { count: below.length - MOST_NAMED })}</li>` : nothing}</ol></section>`;
}

function clean(result, show) {
  const { verdict } = result;
  const worst = verdict.worst_cosine;
  return html`<article class="verdict ${verdict.is_good ? 'is-good' : 'is-doubtful'}">
    <p class="kicker">${t('verdict.verdict')}</p>
    <h2>${local(verdict.sentence)}</h2>
    <dl>
      ${worst ? html`<dt>${t('verdict.worst')}</dt><dd>${figure(worst.cosine)} — <bdi>${
        opLink(result, worst.op, show)}</bdi></dd>` : nothing}
      <dt>${t('verdict.sure')}</dt><dd>${local(verdict.confidence_text)}</dd>
    </dl>
    ${steps(verdict)}
  </article>`;
}

function findings(result, show, isAlone) {
  const shown = isAlone ? result.findings
    : result.findings.filter((one) => one.grade !== 'info'
      && !['first_faulty_op', 'below_threshold', 'all_agree', 'different_input'].includes(one.kind));
  if (!shown.length) return nothing;
  return html`<section><h3>${t(isAlone ? 'findings.only' : 'findings.besides')}</h3>${shown.map((one) => html`<article
    class="finding is-${one.grade}"><p><strong>${textOr(`finding.${one.kind}`, one.kind)}</strong> <bdi>${
      local(one.message)}</bdi>${one.op && result.byName.has(one.op) ? html` ${opLink(result, one.op, show, t('show'))}` : nothing}</p>
    ${one.facts.length ? html`<ul>${one.looked_at ? html`<li><em>${t('findings.looked_at')}</em>${t('colon')}<bdi>${
      local(one.looked_at)}</bdi></li>` : nothing}${one.facts.map(([name, text]) => html`<li>${name ? html`<em>${local(name)}</em>${t('colon')}` : nothing}<bdi>${
      local(text)}</bdi></li>`)}</ul>` : nothing}</article>`)}</section>`;
}

/** The name of an op, which leads to it where the report has it. */
export function opLink(result, name, show, label = name) {
  const op = result.byName.get(name);
  if (op === undefined) return html`<bdi>${label}</bdi>`;
  return html`<button class="link" @click=${() => show(op)}><bdi>${label}</bdi></button>`;
}

function counts(result) {
  const { counts: of, verdict } = result;
  const tile = (value, key, mark = '') => html`<div class="tile ${mark}"><b>${count(value)}</b><span>${t(key)}</span></div>`;
  return html`<section class="tiles">
    ${tile(of.ops, 'count.ops')}
    ${of.tensors === undefined ? nothing : html`${tile(of.compared, 'count.compared')}
      ${tile(of.below, 'count.below', of.below ? 'is-bad' : 'is-good')}${tile(of.ops_below, 'count.ops_below', of.ops_below ? 'is-bad' : 'is-good')}`}
    ${verdict ? html`${tile(verdict.ops.right, 'count.right')}${tile(verdict.ops.wrong, 'count.wrong',
      verdict.ops.wrong ? 'is-bad' : '')}${tile(verdict.ops.doubtful, 'count.doubtful')}${
      tile(verdict.ops.not_recomputed, 'count.not_recomputed')}` : nothing}
  </section>`;
}

function passports(result) {
  const { passport } = result;
  const differences = passport ? passport.differences : [];
  return html`<section><h3>${t('run.title')}</h3><dl class="paths">
    ${result.npu ? html`<dt>${t('run.npu')}</dt><dd><bdi>${result.npu}</bdi></dd>` : nothing}
    ${result.golden ? html`<dt>${t(result.is_two_runs ? 'run.other' : 'run.golden')}</dt><dd><bdi>${result.golden}</bdi></dd>` : nothing}
    ${result.graph ? html`<dt>${t('run.graph')}</dt><dd><bdi>${result.graph}</bdi></dd>` : nothing}
    ${result.file ? html`<dt>${t('run.result')}</dt><dd><bdi>${result.file}</bdi></dd>` : nothing}
    <dt>${t('run.threshold')}</dt><dd>${figure(result.threshold)}</dd></dl>
    ${passport ? html`<h3>${t('run.differs')}</h3>${differences.length ? html`<ul>${differences.map((one) => html`<li><strong>${
      textOr(`topic.${one.topic}`, one.topic)}</strong>${t('colon')}<bdi>${local(one.text)}</bdi></li>`)}</ul>`
    : html`<p class="is-good">✓ ${t('run.same')}</p>`}<dl class="paths"><dt>${t('run.passports')}</dt><dd><bdi>${
      passport.npu}</bdi><br><bdi>${passport.benchmark}</bdi></dd></dl>` : nothing}</section>`;
}

function notCompared(result) {
  const list = result.counts.not_compared ?? [];
  const reasons = result.verdict ? result.verdict.reasons : [];
  const gaps = result.verdict ? result.verdict.gaps : [];
  if (!list.length && !reasons.length && !gaps.length && !result.notes.length && !result.part) return nothing;
  const line = (text, number) => html`<li><bdi>${text}</bdi>${number === undefined ? nothing : html`${t('colon')}${count(number)}`}</li>`;
  return html`<section class="gaps">
    ${result.part ? html`<p class="note">${local(result.part)}</p>` : nothing}
    ${list.length ? html`<h3>${t('gaps.not_compared')}</h3><ul>${list.map(([status, number]) => line(statusOf(result, status), number))}</ul>` : nothing}
    ${reasons.length ? html`<h3>${t('gaps.not_recomputed')}</h3><ul>${reasons.map(([reason, number]) => line(local(reason), number))}</ul>` : nothing}
    ${gaps.length || result.notes.length ? html`<h3>${t('gaps.notes')}</h3><ul>${[...gaps, ...result.notes].map((one) => line(local(one)))}</ul>` : nothing}
  </section>`;
}

/** The whole first screen. */
export function verdictView(result, show) {
  const { verdict } = result;
  return html`<div class="reading">
    ${verdict ? (verdict.culprit ? blame(result, show) : clean(result, show)) : html`<article class="verdict is-doubtful"><p
      class="kicker">${t('verdict.verdict')}</p><h2>${t('verdict.none')}</h2></article>`}
    ${verdict?.culprit ? follows(result, show) : nothing}
    ${counts(result)}
    ${findings(result, show, !verdict)}
    ${profileView(result.profile)}
    ${passports(result)}
    ${notCompared(result)}
  </div>`;
}
