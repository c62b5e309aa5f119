// Groups, ops and where they stand: which groups are open says how large each is, and layers.js where its children are.
import { IN, layGroup, OUT } from './layers.js';

export const OP_WIDTH = 148;
export const OP_HEIGHT = 40;
/** What only feeds others: variables, constants, parameters. */
const SOURCE_HEIGHT = 24;
const GROUP_WIDTH = 176;
const GROUP_HEIGHT = 46;
export const HEADER = 22;
const PADDING = 14;
/** Groups that are laid out before the page may do something else, in milliseconds. */
const SLICE = 12;

export const HIDDEN = 0;
export const BOX = 1;
export const OPEN = 2;

export class Tree {
  /** `aspect` is the width of the map's window by its height. */
  constructor(result, aspect) {
    const { parent, order, lane, groups, mirrors } = result.map;
    this.result = result;
    this.aspect = aspect;
    this.ops = result.inGraph;
    this.total = parent.length;
    this.parent = parent;
    this.groups = groups.name.map((at) => result.texts[at]);
    this.sizes = groups.ops;
    this.isSection = groups.section;
    this.order = order;
    this.lane = lane;
    this.mirrors = new Map(mirrors);
    /** Children of the top, then of each group, in the order of the data flow. */
    this.children = Array.from({ length: groups.name.length + 1 }, () => []);
    for (let item = 0; item < this.total; item += 1) this.children[parent[item] + 1].push(item);
    for (const children of this.children) children.sort((a, b) => order[a] - order[b]);
    this.connect();
    this.x = new Float32Array(this.total);
    this.y = new Float32Array(this.total);
    this.w = new Float32Array(this.total);
    this.h = new Float32Array(this.total);
    this.state = new Uint8Array(this.total);
    this.open = new Set();
    this.shownAs = new Int32Array(this.ops);
    this.openFirst();
  }

  /**
   * The edges between the children of each group: `from`, `to` (items, IN, OUT) and the number of wires. What a source
   * feeds in other groups (a constant of all layers) is a side edge, which neither shapes the map nor is drawn at first.
   */
  connect() {
    const { wires: { producer, reader }, map: { follows }, fed } = this.result;
    const inner = this.children.map(() => new Map());
    const add = (a, b, isWire) => {
      const steps = this.stepsOf(a, b);
      const isSide = steps.length > 0 && !fed[a].length && steps[0][1] !== a;
      for (const [group, from, to] of steps) {
        const key = `${from}:${to}`;
        const edge = inner[group + 1].get(key) ?? inner[group + 1].set(key, { from, to, wires: 0, isSide: true }).get(key);
        edge.wires += isWire;
        edge.isSide &&= isSide;
      }
    };
    for (let at = 0; at < producer.length; at += 1) add(producer[at], reader[at], 1);
    for (const [from, to] of follows) add(from, to, 0); // only the layout has these
    this.inner = inner.map((edges) => [...edges.values()]);
  }

  /** The way from an op to another through groups: out of its own, between two siblings, and down to the other. */
  stepsOf(a, b) {
    if (a === b) return [];
    const above = (item) => [item, ...this.ancestors(item)];
    const [ups, downs] = [above(a), above(b)];
    while (ups.length && downs.length && ups[ups.length - 1] === downs[downs.length - 1]) {
      ups.pop();
      downs.pop();
    }
    const [from, to] = [ups[ups.length - 1], downs[downs.length - 1]];
    const steps = [[this.parent[from], from, to]];
    if (this.lane[a] !== this.lane[b]) return steps; // drawn between the lanes alone
    for (const item of ups.slice(0, -1)) steps.push([this.parent[item], item, OUT]);
    for (const item of downs.slice(0, -1)) steps.push([this.parent[item], IN, item]);
    return steps;
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
    const above = [];
    for (let at = this.parent[item]; at >= 0; at = this.parent[at + this.ops]) above.push(at + this.ops);
    return above;
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

  /** Opens all groups; lays them out bit by bit, so that the page does not stand still. */
  async openAll() {
    const deepestFirst = this.children.map((_, group) => group + this.ops - 1).slice(1)
      .map((item) => [item, this.ancestors(item).length]).sort((a, b) => b[1] - a[1]);
    for (let item = this.ops; item < this.total; item += 1) this.open.add(item);
    let start = performance.now();
    for (const [item] of deepestFirst) {
      this.measure(item, true);
      if (performance.now() - start > SLICE) {
        await new Promise((done) => setTimeout(done));
        start = performance.now();
      }
    }
  }

  closeAll() {
    this.open.clear();
  }

  /** Sizes and places of everything that is shown, and the routes between; where all `isMeasured`, of the top alone. */
  compose(isMeasured = false) {
    if (!isMeasured) {
      this.state.fill(HIDDEN);
      this.laid = new Map();
    }
    [this.width, this.height] = this.measure(-1, isMeasured);
    this.routes = [];
    this.place(-1, 0, 0);
    this.represent();
  }

  isSource(op) {
    const { result } = this;
    return !result.fed[op].length && result.feeds[op].length > 0 && op !== result.culprit && !result.isError(op);
  }

  /** The size of a group; of its children too, unless it `isSure` that these are measured. */
  measure(group, isSure = false) {
    const children = this.childrenOf(group);
    for (const child of children) {
      this.state[child] = BOX;
      if (!this.isGroup(child)) [this.w[child], this.h[child]] = [OP_WIDTH, this.isSource(child) ? SOURCE_HEIGHT : OP_HEIGHT];
      else if (!this.open.has(child)) [this.w[child], this.h[child]] = [GROUP_WIDTH, GROUP_HEIGHT];
      else {
        if (!isSure) this.measure(child);
        this.state[child] = OPEN;
      }
    }
    const numbers = new Map(children.map((child, number) => [child, number]));
    const edges = this.inner[group < 0 ? 0 : group - this.ops + 1].filter(({ from, to }) => from < 0 || to < 0
      || this.order[from] < this.order[to] || this.lane[from] !== this.lane[to]);
    const number = (item) => (item < 0 ? item : numbers.get(item));
    const laid = layGroup({
      nodes: children.map((child) => ({ w: this.w[child], h: this.h[child], lane: this.lane[child] })),
      edges: edges.map(({ from, to, isSide }) => ({ from: number(from), to: number(to), isSide })),
      mirrors: children.filter((child) => this.mirrors.has(child))
        .map((child) => [numbers.get(child), numbers.get(this.mirrors.get(child))]),
      aspect: this.aspect,
    });
    const size = group < 0 ? [laid.width, laid.height]
      : [laid.width + 2 * PADDING, laid.height + HEADER + 2 * PADDING];
    if (group >= 0) [this.w[group], this.h[group]] = size;
    this.laid.set(group, { ...laid, edges });
    return size;
  }

  /** Puts the children of a group to their places, and notes the routes between them. */
  place(group, left, top) {
    const { x, y, edges, routes } = this.laid.get(group);
    const [dx, dy] = group < 0 ? [0, 0] : [left + PADDING, top + HEADER + PADDING];
    this.childrenOf(group).forEach((child, number) => {
      this.x[child] = x[number] + dx;
      this.y[child] = y[number] + dy;
      if (this.state[child] === OPEN) this.place(child, this.x[child], this.y[child]);
    });
    edges.forEach(({ from, to, wires, isSide }, number) => {
      if (!wires || !routes[number]) return;
      const points = routes[number].map(([px, py]) => [px + dx, py + dy]);
      // Within an open group the route goes on at its port.
      const isUp = this.lane[from < 0 ? to : from] === 1;
      const edge = group < 0 ? 0 : isUp ? top + this.h[group] : top;
      const other = group < 0 ? 0 : isUp ? top : top + this.h[group];
      if (from < 0) points.unshift([points[0][0], edge]);
      if (to < 0) points.push([points[points.length - 1][0], other]);
      this.routes.push({
        group, from, to, wires, points, isSide, isAcross: from >= 0 && to >= 0 && this.lane[from] !== this.lane[to],
      });
    });
  }

  /** Routes to and from an open group end at the ports of those within. */
  join() {
    const ports = new Map();
    for (const { group, from, to, points } of this.routes) {
      if (from < 0) ports.set(`${group}:${IN}`, points[0]);
      if (to < 0) ports.set(`${group}:${OUT}`, points[points.length - 1]);
    }
    for (const { from, to, points, isAcross } of this.routes) {
      if (isAcross) continue;
      const [start, end] = [ports.get(`${from}:${OUT}`), ports.get(`${to}:${IN}`)];
      if (start) points[0] = start;
      if (end) points[points.length - 1] = end;
    }
  }

  /** The routes of the steps of these wires, by what they are between. */
  keysOf(wires) {
    const keys = new Set();
    for (const [a, b] of wires) for (const step of this.stepsOf(a, b)) keys.add(step.join(':'));
    return keys;
  }

  /** For each op the box that stands for it. */
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
    this.join();
    for (const route of this.routes) {
      const [xs, ys] = [0, 1].map((axis) => route.points.map((point) => point[axis]));
      route.key = `${route.group < 0 ? -1 : route.group - this.ops}:${route.from}:${route.to}`;
      route.box = [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
    }
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
