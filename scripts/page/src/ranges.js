// How near values come to the ends of their type: along the way to an overflow, and in casts to a narrower type.

/** The largest number of each type. */
const LARGEST = { float64: Number.MAX_VALUE, float32: 3.4028234663852886e38, bfloat16: 3.3895313892515355e38, float16: 65504 };

/** The row of each tensor, by `op slot`. */
function rowsOf(result) {
  const rows = new Map();
  for (let row = 0; row < result.tensorCount; row += 1) rows.set(`${result.tensors.op[row]} ${result.tensors.slot[row]}`, row);
  return rows;
}

/** The largest size of one side of a tensor; Infinity with one in it, null where it is not known. */
function largest({ tensors }, row, side) {
  if (tensors[`${side}_pos_inf`][row] || tensors[`${side}_neg_inf`][row]) return Infinity;
  const size = Math.max(Math.abs(tensors[`${side}_min`][row]), Math.abs(tensors[`${side}_max`][row]));
  return tensors[`${side}_min`][row] === null || Number.isNaN(size) ? null : size;
}

/** A step of the way: powers of ten between the largest value and the limit; above 0 it is beyond. */
function stepOf(result, op, row, limit) {
  const size = largest(result, row, 'npu');
  if (size === null) return null;
  const over = (one) => (one ? Math.log10(one / limit) : null);
  const other = largest(result, row, 'golden');
  return { op, npu: over(Math.min(size, limit)), golden: Number.isFinite(other) ? over(other) : null };
}

/** The input with the largest values: who made it, and the row that tells of it. */
function driver(result, rows, op) {
  let found = null;
  for (const { op: producer, output, slot } of result.fed[op]) {
    if (slot < 0 || producer === op) continue;
    const row = rows.get(`${producer} output:${output}`) ?? rows.get(`${op} input:${slot}`);
    const size = row === undefined ? null : largest(result, row, 'npu');
    if (size !== null && (!found || size > found.size)) found = { producer, row, size };
  }
  return found;
}

/** The ops from the one with the most room to the first that overflows, each the one that feeds the largest values. */
export function wayToOverflow(result) {
  const { ops } = result;
  const overflows = (op) => op >= 0 && ops.headroom[op] === 0;
  const end = overflows(result.culprit) ? result.culprit : ops.headroom.findIndex((_, op) => overflows(op));
  if (end < 0) return [];
  const rows = rowsOf(result);
  let row = [...Array(64).keys()].map((at) => rows.get(`${end} output:${at}`))
    .find((one) => one !== undefined && result.tensors.headroom[one] === 0);
  const limit = LARGEST[result.tensors.npu_type[row]];
  if (limit === undefined) return [];
  const way = [];
  const seen = new Set();
  for (let op = end; row !== undefined && !seen.has(op);) {
    seen.add(op);
    const step = stepOf(result, op, row, limit);
    if (!step) break;
    way.push(step);
    const before = driver(result, rows, op);
    if (!before) break;
    [op, row] = [before.producer, before.row];
  }
  const room = way.map((step) => step.npu ?? 0);
  return way.slice(0, room.indexOf(Math.min(...room)) + 1).reverse();
}

const elements = (shape) => (shape.match(/\d+/g) ?? []).reduce((product, extent) => product * Number(extent), 1);

/** What casts to a type of a smaller range lost, in order of execution: shares of values below and above that range. */
export function castLosses(result) {
  const { ops, tensors } = result;
  const rows = rowsOf(result);
  const found = [];
  for (let op = 0; op < result.count; op += 1) {
    const [before, after] = [rows.get(`${op} input:0`), rows.get(`${op} output:0`)];
    if (ops.type[op] !== 'Cast' || before === undefined || after === undefined) continue;
    const [from, to] = [LARGEST[tensors.npu_type[before]], LARGEST[tensors.npu_type[after]]];
    const count = elements(tensors.shape[after] || tensors.shape[before]);
    if (!(to < from) || !count || tensors.npu_zeros[before] === null || tensors.npu_zeros[after] === null) continue;
    const infinite = (row) => tensors.npu_pos_inf[row] + tensors.npu_neg_inf[row];
    const more = Math.max(infinite(after) - infinite(before), largest(result, before, 'npu') > to ? 1 : 0);
    found.push({
      op, types: `${tensors.npu_type[before]} → ${tensors.npu_type[after]}`,
      below: Math.max(0, tensors.npu_zeros[after] - tensors.npu_zeros[before]) / count, above: more / count,
    });
  }
  return found;
}
