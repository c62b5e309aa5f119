// Groups, ops and where they stand. Python gives ranks and orders; which groups are open says how large each is.

export const OP_WIDTH = 148;
export const OP_HEIGHT = 40;
const GROUP_WIDTH = 176;
const GROUP_HEIGHT = 46;
export const HEADER = 22;
const PADDING = 14;
const GAP_X = 16;
const GAP_Y = 30;
const SIDE_GAP = 70;
const MOST_IN_ROW = 10;

export const HIDDEN = 0;
export const BOX = 1;
export const OPEN = 2;

export class Tree {
  constructor(result) {
    const { parent, rank, order, backward, groups } = result.map;
    this.result = result;
    this.ops = result.inGraph;
    this.total = parent.length;
    this.parent = parent;
    this.groups = groups.name.map((at) => result.texts[at]);
    this.sizes = groups.ops;
    this.isSection = groups.section;
    this.rank = rank;
    this.backward = backward;
    /** Children of the top, then of each group, by side, rank and order. */
    this.children = Array.from({ length: groups.name.length + 1 }, () => []);
    for (let item = 0; item < this.total; item += 1) this.children[parent[item] + 1].push(item);
    for (const children of this.children) {
      children.sort((a, b) => rank[a] - rank[b] || backward[a] - backward[b] || order[a] - order[b]);
    }
    this.x = new Float32Array(this.total);
    this.y = new Float32Array(this.total);
    this.w = new Float32Array(this.total);
    this.h = new Float32Array(this.total);
    this.state = new Uint8Array(this.total);
    this.open = new Set();
    this.shownAs = new Int32Array(this.ops);
    this.openFirst();
  }

  isGroup(item) {
    return item >= this.ops;
  }

  nameOf(item) {
    if (!this.isGroup(item)) return this.result.ops.name[item];
    const name = this.groups[item - this.ops];
    if (!this.isSection[item - this.ops]) return name;
    const children = this.childrenOf(item); // a piece of a large group: what it begins and ends with
    const label = (one) => this.result.ops.label[one]?.split(' · ').slice(-1)[0]; // of an input its call
    const end = (one) => (label(one) || this.nameOf(one)).split(': ').slice(-1)[0].split(' … ')[0];
    return `${name}: ${end(children[0])} … ${end(children[children.length - 1])}`;
  }

  childrenOf(item) {
    return this.children[item < 0 ? 0 : item - this.ops + 1];
  }

  /** What is open at the beginning: where there is only one group, that one. */
  openFirst() {
    let children = this.childrenOf(-1);
    for (let depth = 0; depth < 8; depth += 1) {
      const groups = children.filter((item) => this.isGroup(item));
      if (groups.length > 3 || children.length > 12) break;
      for (const group of groups) this.open.add(group);
      children = groups.flatMap((group) => this.childrenOf(group));
    }
    if (this.ops <= 60) for (let item = this.ops; item < this.total; item += 1) this.open.add(item);
  }

  ancestors(item) {
    const found = [];
    for (let at = this.parent[item]; at >= 0; at = this.parent[at + this.ops]) found.push(at + this.ops);
    return found;
  }

  reveal(op) {
    let changed = false;
    for (const group of this.ancestors(op)) {
      if (!this.open.has(group)) {
        this.open.add(group);
        changed = true;
      }
    }
    return changed;
  }

  toggle(group) {
    if (!this.open.delete(group)) this.open.add(group);
  }

  openAll() {
    for (let item = this.ops; item < this.total; item += 1) this.open.add(item);
  }

  closeAll() {
    this.open.clear();
  }

  /** Sizes and places of everything that is shown, and the wires between. */
  compose() {
    this.state.fill(HIDDEN);
    const [width, height] = this.measure(-1);
    this.place(-1, 0, 0);
    this.width = width;
    this.height = height;
    this.represent();
  }

  /** The size of a group's content; children get places within it. */
  measure(item) {
    const columns = [0, 0];
    const rows = [];
    let row = null;
    for (const child of this.childrenOf(item)) {
      if (!this.isGroup(child)) {
        this.w[child] = OP_WIDTH;
        this.h[child] = OP_HEIGHT;
        this.state[child] = BOX;
      } else if (this.open.has(child)) {
        [this.w[child], this.h[child]] = this.measure(child);
        this.state[child] = OPEN;
      } else {
        this.w[child] = GROUP_WIDTH;
        this.h[child] = GROUP_HEIGHT;
        this.state[child] = BOX;
      }
      if (!row || row.rank !== this.rank[child]) {
        row = { rank: this.rank[child], sides: [[[]], [[]]] };
        rows.push(row);
      }
      const lines = row.sides[this.backward[child]];
      if (lines[lines.length - 1].length >= MOST_IN_ROW) lines.push([]);
      lines[lines.length - 1].push(child);
    }
    for (const { sides } of rows) {
      sides.forEach((lines, side) => {
        for (const line of lines) columns[side] = Math.max(columns[side], this.lineWidth(line));
      });
    }
    const top = item < 0 ? 0 : HEADER + PADDING;
    const side = item < 0 ? 0 : PADDING;
    const gap = columns[0] && columns[1] ? SIDE_GAP : 0;
    let y = top;
    for (const { sides } of rows) {
      let lowest = y;
      sides.forEach((lines, number) => {
        const middle = side + (number ? columns[0] + gap : 0) + columns[number] / 2;
        let at = y;
        for (const line of lines) if (line.length) at = this.placeLine(line, middle, at);
        lowest = Math.max(lowest, at);
      });
      y = lowest;
    }
    return [columns[0] + gap + columns[1] + 2 * side, y - (rows.length ? GAP_Y : 0) + (item < 0 ? 0 : PADDING)];
  }

  lineWidth(line) {
    return line.reduce((sum, child) => sum + this.w[child], (line.length - 1) * GAP_X);
  }

  placeLine(line, middle, y) {
    let x = middle - this.lineWidth(line) / 2;
    let height = 0;
    for (const child of line) {
      this.x[child] = x;
      this.y[child] = y;
      x += this.w[child] + GAP_X;
      height = Math.max(height, this.h[child]);
    }
    return y + height + GAP_Y;
  }

  place(item, x, y) {
    for (const child of this.childrenOf(item)) {
      this.x[child] += x;
      this.y[child] += y;
      if (this.state[child] === OPEN) this.place(child, this.x[child], this.y[child]);
    }
  }

  /** For each op the box that stands for it, and the wires between different boxes, each once. */
  represent() {
    for (let op = 0; op < this.ops; op += 1) {
      let shown = op;
      let at = this.parent[op];
      while (at >= 0) {
        if (!this.open.has(at + this.ops)) shown = at + this.ops;
        at = this.parent[at + this.ops];
      }
      this.shownAs[op] = shown;
    }
    const { producer, reader, slot } = this.result.wires;
    const seen = new Set();
    const from = [];
    const to = [];
    for (let at = 0; at < producer.length; at += 1) {
      const a = this.shownAs[producer[at]];
      const b = this.shownAs[reader[at]];
      if (a === b) continue;
      const key = a * this.total + b;
      if (seen.has(key)) continue;
      seen.add(key);
      from.push(a);
      to.push(b);
    }
    this.from = Int32Array.from(from);
    this.to = Int32Array.from(to);
    this.slots = slot;
  }

  /** The innermost shown item at a place of the map, -1 for none. */
  hit(x, y) {
    let found = -1;
    let within = -1;
    for (;;) {
      const next = this.childrenOf(within).find((child) => x >= this.x[child] && y >= this.y[child]
        && x <= this.x[child] + this.w[child] && y <= this.y[child] + this.h[child]);
      if (next === undefined) return found;
      found = next;
      if (this.state[next] !== OPEN) return found;
      within = next;
    }
  }
}
