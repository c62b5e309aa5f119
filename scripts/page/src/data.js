// The data of the page: unpacked, and with numbers that JSON cannot hold put in their place.
import { unzlibSync } from 'fflate';

export const SCHEMA = 4;
const NUMBERS = { nan: NaN, inf: Infinity, '-inf': -Infinity };

async function inflate(bytes) {
  if (typeof DecompressionStream === 'function') {
    try {
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
      return new Uint8Array(await new Response(stream).arrayBuffer());
    } catch {
      // an old browser that knows another name only
    }
  }
  return unzlibSync(bytes);
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at += 1) bytes[at] = raw.charCodeAt(at);
  return bytes;
}

/** A number as the data has it; null for none. */
export function number(value) {
  return typeof value === 'string' ? NUMBERS[value] ?? null : value ?? null;
}

/** Columns that graphs of recorded calls alone have. */
const OF_CALLS = ['label', 'module', 'source', 'arguments', 'placeholder', 'recompute'];
const TEXT_COLUMNS = ['name', 'type', 'graph', 'kernel', 'state', 'reason', 'how', 'status', 'dtype', 'label', 'module',
  'source'];
const TENSOR_TEXTS = ['slot', 'worst_at'];
const NOT_NUMBERS = new Set(['op', 'agree', 'agree_in', 'pass', 'originals', 'inputs', 'outputs', 'arguments']);

const NO_PLACES = '@'.charCodeAt(0);
const [ZERO, NONE] = [0x2800, 0xE000];
const POWERS = Array.from({ length: 23 }, (_, power) => Number(`1e${power}`));

/** A column of integers; as one text it has a sign for each. */
function integers(column) {
  if (typeof column !== 'string') return column;
  const found = new Array(column.length);
  for (let at = 0; at < column.length; at += 1) {
    const sign = column.charCodeAt(at);
    found[at] = sign === NONE ? null : sign - ZERO;
  }
  return found;
}

/** A column of integers and of their decimal places, and of the values that are no such. */
function decimals({ of, places, more }) {
  const column = integers(of);
  for (let at = 0; at < column.length; at += 1) {
    const power = places.charCodeAt(at) - NO_PLACES;
    if (power > 0) column[at] /= POWERS[power];
    else if (power < 0) column[at] *= POWERS[-power];
  }
  for (const [at, value] of more) column[at] = value;
  return column;
}

function prepareColumns(columns, texts, textColumns, count) {
  for (const name of textColumns) {
    const column = integers(columns[name]);
    columns[name] = column.length ? column.map((at) => texts[at ?? 0]) : new Array(count).fill('');
  }
  for (const [name, packed] of Object.entries(columns)) {
    if (NOT_NUMBERS.has(name) || textColumns.includes(name)) continue;
    const column = packed.places === undefined ? packed : decimals(packed);
    columns[name] = column;
    if (!column.length) columns[name] = new Array(count).fill(0);
    for (let at = 0; at < column.length; at += 1) if (typeof column[at] === 'string') column[at] = number(column[at]);
  }
}

/** One result: columns of texts and numbers, and what belongs together. */
export class Result {
  constructor(raw) {
    Object.assign(this, raw);
    this.count = raw.ops.name.length;
    for (const name of OF_CALLS) this.ops[name] ??= [];
    prepareColumns(this.ops, raw.texts, TEXT_COLUMNS, this.count);
    for (const name of ['pass', 'originals', 'inputs', 'outputs', 'arguments']) {
      this.ops[name] = this.ops[name].map((list) => list && list.map((at) => raw.texts[at]));
    }
    for (const op of Object.keys(this.overflowed)) if (this.ops.state[op] === 'right') this.ops.state[op] = 'beyond';
    this.tensors.op = integers(raw.tensors.op);
    this.tensorCount = this.tensors.op.length;
    const texts = raw.tensor_columns.filter((one) => one.look === 'text').map((one) => one.key);
    prepareColumns(this.tensors, raw.texts, [...TENSOR_TEXTS, ...texts], this.tensorCount);
    this.byName = new Map();
    this.inGraph = raw.map ? raw.map.parent.length - raw.map.groups.name.length : 0;
    for (let op = this.count - 1; op >= 0; op -= 1) {
      // Of several ops of one name that which was compared stands behind those of the graph.
      const known = this.byName.get(this.ops.name[op]) ?? -1;
      if (known < this.inGraph || op >= this.inGraph) this.byName.set(this.ops.name[op], op);
    }
    this.tensorsOf = Array.from({ length: this.count }, () => []);
    raw.tensors.op.forEach((op, row) => this.tensorsOf[op].push(row));
    this.searchable = null;
    this.connect();
    this.suspects = new Set();
    const names = raw.verdict && raw.verdict.culprit ? raw.verdict.suspects : [];
    for (const one of names) if (this.byName.has(one.culprit)) this.suspects.add(this.byName.get(one.culprit));
    this.culprit = raw.verdict && raw.verdict.culprit ? this.byName.get(raw.verdict.culprit) ?? -1 : -1;
    if (this.culprit < 0 && !raw.verdict) {
      const named = raw.findings.find((one) => one.kind === 'first_faulty_op');
      this.culprit = named ? this.byName.get(named.op) ?? -1 : -1;
    }
    this.errors = [];
    for (let op = 0; op < this.count; op += 1) if (this.isError(op)) this.errors.push(op);
  }

  connect() {
    this.feeds = Array.from({ length: this.count }, () => []);
    this.fed = Array.from({ length: this.count }, () => []);
    if (!this.wires) return;
    const { producer, output, reader, slot } = this.wires;
    for (let at = 0; at < producer.length; at += 1) {
      this.feeds[producer[at]].push({ op: reader[at], output: output[at], slot: slot[at] });
      this.fed[reader[at]].push({ op: producer[at], output: output[at], slot: slot[at] });
    }
  }

  /** Whether an op is worth a stop on the walk through the errors. */
  isError(op) {
    return this.ops.agree[op] === false || this.ops.state[op] === 'wrong' || this.suspects.has(op);
  }

  /** Ops that have a word in their name, type, pass, the names of their original ops, module or source line. */
  search(word) {
    const wanted = word.trim().toLowerCase();
    if (!wanted) return [];
    if (!this.searchable) {
      const { name, type, pass, originals, module, source } = this.ops;
      this.searchable = name.map((one, op) => [one, type[op], ...(pass[op] ?? []), ...(originals[op] ?? []), module[op],
        source[op]].join('\n').toLowerCase());
    }
    const found = [];
    for (let op = 0; op < this.count; op += 1) if (this.searchable[op].includes(wanted)) found.push(op);
    return found;
  }
}

/** What the page shows. */
export async function load() {
  const holder = document.getElementById('data');
  const text = new TextDecoder().decode(await inflate(fromBase64(holder.textContent.trim())));
  holder.remove();
  const data = JSON.parse(text);
  if (data.schema !== SCHEMA) throw new Error(`the data have schema ${data.schema}, this page knows ${SCHEMA}`);
  data.results = data.results.map((raw) => new Result(raw));
  return data;
}
