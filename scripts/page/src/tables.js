// The columns of the two tables.
import { GridTable } from './table.js';
import { bits, cosine, count, figure, local, percent, shownAs, statusOf, t, textOr, typeOf } from './words.js';

const number = (key, of, show = (value) => figure(value, 5)) => ({ key, value: of, show, isNumber: true });

function opColumns(result) {
  const { ops } = result;
  const state = (value) => (value ? t(`state.${value}`) : '–');
  const ratio = (value) => (value === null ? '–' : `${figure(value, 4)}×`);
  return [
    { ...number('order', (op) => ops.id[op], (id) => id ?? '–'), wide: 72, example: '=7' },
    { key: 'name', value: (op) => ops.name[op], wide: 340 },
    { key: 'type', value: (op) => typeOf(ops, op) },
    ...['module', 'source'].filter((key) => ops[key].some(Boolean)).map((key) => ({ key, value: (op) => ops[key][op], wide: 200 })),
    { key: 'state', value: (op) => ops.state[op], show: state, wide: 230, mark: (op) => (['wrong', 'beyond'].includes(ops.state[op]) ? 'is-bad' : '') },
    number('own', (op) => ops.own[op], percent),
    number('rounding', (op) => ops.rounding[op], percent),
    number('worst_of_rounding', (op) => ops.worst_of_rounding[op], ratio),
    number('beyond', (op) => ops.beyond[op], ratio),
    number('fed', (op) => ops.fed[op], percent),
    { ...number('cosine', (op) => ops.cosine[op], cosine), mark: (op) => (ops.agree[op] === false ? 'is-bad' : '') },
    number('cosine_in', (op) => ops.cosine_in[op], cosine),
    number('headroom', (op) => ops.headroom[op], (value) => (value === null ? '–' : bits(value))),
    { key: 'dtype', value: (op) => ops.dtype[op] },
    { key: 'pass', value: (op) => (ops.pass[op] ?? []).join(' '), wide: 220 },
    { key: 'status', value: (op) => ops.status[op], show: (one) => (one ? statusOf(result, one) : '–'), wide: 200 },
    { key: 'originals', value: (op) => (ops.originals[op] ?? []).join(' '), wide: 300 },
  ];
}

/** Columns of tensors that stand at places of their own, not where the data list them. */
const PLACED = new Set(['npu_type', 'golden_type', 'shape', 'status', 'golden_tensor', 'reason']);

/** The columns of tensors that the data list, of one part of a row or of the others. */
function listed(result, parts) {
  const { tensors } = result;
  const typed = (side) => (one, row) => shownAs(tensors[`${side}_type`][row])(one, 5);
  return result.tensor_columns.filter(({ key, part }) => !PLACED.has(key) && parts(part)).map(({ key, name, part, look }) => {
    const column = { key, name, value: (row) => tensors[key][row] };
    if (look === 'text') return column;
    const looks = { percent, count, exact: typed(part === 'golden' ? 'golden' : 'npu') };
    return { ...number(key, column.value, looks[look]), name };
  });
}

function tensorColumns(result) {
  const { ops, tensors } = result;
  const of = (name) => (row) => tensors[name][row];
  const sides = ['npu', 'golden'];
  return [
    { key: 'name', value: (row) => ops.name[tensors.op[row]], wide: 320 },
    { key: 'slot', value: of('slot'), wide: 90 },
    { ...number('cosine', of('cosine'), cosine), mark: (row) => (tensors.agree[row] === false ? 'is-bad' : '') },
    ...listed(result, (part) => part === 'metrics'),
    { key: 'worst_at', value: of('worst_at'), wide: 110 },
    { key: 'npu_type', value: of('npu_type'), wide: 96 },
    { key: 'golden_type', value: of('golden_type'), wide: 96 },
    { key: 'shape', value: of('shape') },
    number('headroom', of('headroom'), (value) => (value === null ? '–' : bits(value))),
    ...sides.flatMap((side) => listed(result, (part) => part === side)),
    ...listed(result, (part) => part !== 'metrics' && !sides.includes(part)),
    { key: 'status', value: of('status'), show: (one) => textOr(`status.${one}`, one || '–'), wide: 200 },
    { key: 'golden_tensor', value: of('golden_tensor'), wide: 260 },
    { key: 'reason', value: (row) => local(tensors.reason[row]), wide: 320 },
  ];
}

const upTo = (count) => Array.from({ length: count }, (_, at) => at);

/** How bad a cosine is: none is no reason to look, NaN the best one. */
const badness = (value) => (value === null ? -Infinity : Number.isNaN(value) ? Infinity : 1 - value);

/** How soon an op is looked at: the culprit, whom else the verdict blames, what computes incorrectly or is below the threshold. */
function levels({ ops, culprit, suspects }) {
  const wrong = new Set(['wrong', 'beyond']);
  return (op) => (op === culprit ? 0 : suspects.has(op) ? 1 : wrong.has(ops.state[op]) ? 2 : ops.agree[op] === false ? 3 : 4);
}

/** Numbers of rows by their level, then the worst, then as they come. */
const worstFirst = (count, level, bad) => upTo(count)
  .sort((a, b) => level(a) - level(b) || (bad[a] < bad[b] ? 1 : bad[a] > bad[b] ? -1 : a - b));

/** The ops, worst first: by their own error where they compute incorrectly, else by their cosine. */
function worstOps(result) {
  const { ops } = result;
  const level = levels(result);
  return worstFirst(result.count, level, ops.cosine.map((value, op) => (level(op) === 2 ? ops.own[op] ?? 0 : badness(value))));
}

/** The tensors, worst first: the culprit's, then those below the threshold, by their cosine. */
function worstTensors(result) {
  const { tensors, culprit } = result;
  const level = (row) => (tensors.agree[row] === false ? 0 : 1) - (tensors.op[row] === culprit ? 2 : 0);
  return worstFirst(result.tensorCount, level, tensors.cosine.map(badness));
}

export function opTable(holder, result, { show, selected }) {
  return new GridTable(holder, {
    columns: opColumns(result), rows: worstOps(result), isWorstFirst: true, name: 'ops', chosen: show, selected: (op) => op === selected(),
  });
}

export function tensorTable(holder, result, { show, selected }) {
  return new GridTable(holder, {
    columns: tensorColumns(result), rows: worstTensors(result), isWorstFirst: true, name: 'tensors',
    chosen: (row) => show(result.tensors.op[row]), selected: (row) => result.tensors.op[row] === selected(),
  });
}
