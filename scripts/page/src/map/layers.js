// The layers of one group: children in rows that follow the data flow, and the edges between them. dagre ranks, orders
// and routes; here is what it lacks: rows of bounded width, columns where a group would be a needle, lanes side by side.
import { Graph, layout } from '@dagrejs/dagre';

/** Stand for all that reads into a group, and all that reads from it. */
export const IN = -1;
export const OUT = -2;
export const [FORWARD, BACKWARD, UPDATE] = [0, 1, 2];

const GAP_X = 18;
const GAP_Y = 28;
const LANE_GAP = 70;
const COLUMN_GAP = 56;
/** The nodes of a wider row are put into lines. */
const WIDEST = 1400;
/** An edge over more rows than this that other edges imply runs beside them, not between. */
const LONG = 12;
/** Higher groups are put into columns. */
const HIGHEST = 1300;
const MOST_COLUMNS = 12;
const RAIL = 14;
const FEW = 6;
const MOST_KEPT = 4000;

const kept = new Map();

/**
 * The layout of nodes `{ w, h, lane }` in the order of the data flow, with edges `{ from, to }` by their numbers, `from`
 * lower than `to` (or IN, OUT); one that `isSide` takes no room. `mirrors` are pairs of a node of the backward pass and one of the forward pass that
 * stand level; `aspect` is the width of the screen by its height. Gives x and y of the nodes, and a route for each edge.
 */
export function layGroup({ nodes, edges, mirrors = [], aspect = 1.4 }) {
  const x = new Array(nodes.length).fill(0);
  const y = new Array(nodes.length).fill(0);
  const routes = edges.map(() => null);
  const lanes = [FORWARD, BACKWARD, UPDATE].map((lane) => layLane(nodes, edges, lane));
  align(lanes[FORWARD], lanes[BACKWARD], mirrors, nodes);
  const passes = beside(lanes[FORWARD], lanes[BACKWARD]);
  const all = beside(toColumns(passes, nodes, aspect), toColumns(lanes[UPDATE], nodes, aspect));
  for (const [node, at] of all.at) [x[node], y[node]] = at;
  for (const [edge, points] of all.routes) routes[edge] = points;
  edges.forEach(({ from, to }, edge) => {
    if (routes[edge] || from < 0 || to < 0) return;
    const [a, b] = x[from] <= x[to] ? [from, to] : [to, from];
    const points = [[x[a] + nodes[a].w, y[a] + nodes[a].h / 2], [x[b], y[b] + nodes[b].h / 2]];
    routes[edge] = a === from ? points : points.reverse();
  });
  return { x, y, width: all.width, height: all.height, routes };
}

// --- one lane -----------------------------------------------------------------------------------------------------

function layLane(nodes, edges, lane) {
  const members = [];
  const local = new Map();
  nodes.forEach((node, at) => {
    if (node.lane !== lane) return;
    local.set(at, members.length);
    members.push(at);
  });
  const block = { at: new Map(), routes: new Map(), width: 0, height: 0 };
  if (!members.length) return block;
  const own = [];
  const numbers = [];
  edges.forEach(({ from, to }, edge) => {
    if ((from >= 0 && !local.has(from)) || (to >= 0 && !local.has(to))) return;
    own.push([from < 0 ? from : local.get(from), to < 0 ? to : local.get(to), Boolean(edges[edge].isSide)]);
    numbers.push(edge);
  });
  const sizes = members.map((at) => [nodes[at].w, nodes[at].h]);
  const key = JSON.stringify([lane === BACKWARD, sizes, own]);
  let found = kept.get(key);
  if (!found) {
    found = withFree(sizes, own, lane === BACKWARD);
    if (kept.size > MOST_KEPT) kept.clear();
    kept.set(key, found);
  }
  members.forEach((at, number) => block.at.set(at, found.places[number]));
  numbers.forEach((edge, number) => block.routes.set(edge, found.routes[number]));
  return Object.assign(block, { width: found.width, height: found.height });
}

/** Nodes that no other of the group reads, and that read no other, stand in lines below the rest. */
function withFree(sizes, edges, isUpward) {
  const bound = new Set(edges.filter(([from, to, isSide]) => !isSide && from >= 0 && to >= 0).flatMap(([from, to]) => [from, to]));
  const free = sizes.map((_, node) => node).filter((node) => !bound.has(node));
  if (free.length <= FEW) return layered(sizes, edges, isUpward);
  const number = new Map([...bound].sort((a, b) => a - b).map((node, at) => [node, at]).concat([[IN, IN], [OUT, OUT]]));
  const isOfRest = ([from, to]) => number.has(from) && number.has(to);
  const core = bound.size ? layered(sizes.filter((_, node) => bound.has(node)),
    edges.filter(isOfRest).map(([from, to, isSide]) => [number.get(from), number.get(to), isSide]), isUpward)
    : { places: [], routes: [], width: 0, height: 0 };
  let [x, y, high] = [RAIL, core.height ? core.height + GAP_Y : RAIL, 0];
  let right = core.width;
  const widest = Math.max(core.width, widestOf(free, sizes));
  const places = [];
  for (const [node, at] of number) if (at >= 0) places[node] = core.places[at];
  for (const node of free) {
    const [w, h] = sizes[node];
    if (x > RAIL && x + w > widest) [x, y, high] = [RAIL, y + high + GAP_Y, 0];
    places[node] = [x, y];
    [x, high] = [x + w + GAP_X, Math.max(high, h)];
    right = Math.max(right, x - GAP_X);
  }
  const height = y + high;
  const end = (port) => [RAIL / 2, (port === IN) === isUpward ? height : 0];
  let next = 0;
  const routes = edges.map((edge) => {
    if (isOfRest(edge)) return core.routes[next++];
    const [a, b] = edge.slice(0, 2).map((node) => (node < 0 ? end(node) : [places[node][0], places[node][1] + sizes[node][1] / 2]));
    return [a, [RAIL / 2, a[1]], [RAIL / 2, b[1]], b];
  });
  return { places, routes, width: right, height };
}

/** Rows from above, or from below for the backward pass. */
function layered(sizes, edges, isUpward) {
  const ranks = ranksOf(sizes.length, edges);
  const lines = linesOf(sizes, ranks);
  const long = longEdges(edges, ranks, lines);
  const graph = new Graph({ multigraph: true });
  graph.setGraph({ rankdir: isUpward ? 'BT' : 'TB', nodesep: GAP_X, ranksep: GAP_Y, edgesep: 12 });
  sizes.forEach(([width, height], node) => graph.setNode(String(node), { width, height }));
  edges.forEach(([from, to], edge) => {
    for (const port of [from, to]) if (port < 0 && !graph.hasNode(String(port))) graph.setNode(String(port), { width: 1, height: 1 });
    if (!long.has(edge)) graph.setEdge(String(from), String(to), { weight: 2 }, String(edge));
  });
  for (const [above, node] of lines) graph.setEdge(String(above), String(node), { weight: 0 }, 'line');
  layout(graph);
  const rails = new Map();
  const upper = new Set(lines.map(([above]) => above));
  const railOf = (edge) => edges[edge][upper.has(edges[edge][0]) ? 1 : 0];
  for (const edge of long) if (!edges[edge][2] && !rails.has(railOf(edge))) rails.set(railOf(edge), (rails.size % 4 + 1) * RAIL);
  const shift = rails.size ? (Math.min(4, rails.size) + 1) * RAIL : 0;
  const places = sizes.map(([w, h], node) => {
    const { x, y } = graph.node(String(node));
    return [x - w / 2 + shift, y - h / 2];
  });
  const ends = (node, isStart) => {
    if (node < 0) return { x: graph.node(String(node)).x + shift, y: graph.node(String(node)).y, w: 0 };
    const [w, h] = sizes[node];
    return { x: places[node][0] + w / 2, y: places[node][1] + (isStart !== isUpward ? h : 0), w };
  };
  const routes = edges.map(([from, to], edge) => {
    const [a, b] = [ends(from, true), ends(to, false)];
    if (long.has(edge)) {
      const rail = shift - (rails.get(railOf(edge)) ?? RAIL / 2);
      const [left, right] = [from, to].map((node) => (node < 0 ? null : places[node]));
      const start = left ? [left[0], left[1] + sizes[from][1] / 2] : [a.x, a.y];
      const end = right ? [right[0], right[1] + sizes[to][1] / 2] : [b.x, b.y];
      return [start, [rail, start[1]], [rail, end[1]], end];
    }
    const inner = graph.edge(String(from), String(to), String(edge)).points.slice(1, -1).map((one) => [one.x + shift, one.y]);
    const towards = (end, next) => [end.x + Math.max(-0.3 * end.w, Math.min(0.3 * end.w, (next - end.x) / 4)), end.y];
    const start = towards(a, inner.length ? inner[0][0] : b.x);
    const end = towards(b, inner.length ? inner[inner.length - 1][0] : a.x);
    return [start, ...inner, end];
  });
  const { width, height } = graph.graph();
  return { places, routes, width: width + shift, height };
}

/** The longest paths; `from` of an edge is lower than `to`. */
function ranksOf(count, edges) {
  const ranks = new Array(count).fill(0);
  const into = Array.from({ length: count }, () => []);
  for (const [from, to] of edges) if (to >= 0) into[to].push(from);
  for (let node = 0; node < count; node += 1) {
    for (const from of into[node]) ranks[node] = Math.max(ranks[node], (from < 0 ? 0 : ranks[from]) + 1);
  }
  return ranks;
}

/** Rows that are too wide are put into lines, as wide as all of them are high; gives pairs of a node and one below it. */
function linesOf(sizes, ranks) {
  const rows = new Map();
  ranks.forEach((rank, node) => (rows.get(rank) ?? rows.set(rank, []).get(rank)).push(node));
  const pairs = [];
  for (const row of rows.values()) {
    const widest = widestOf(row, sizes);
    let [above, line, width] = [[], [], 0];
    for (const node of row) {
      width += sizes[node][0] + GAP_X;
      if (width > widest && line.length) [above, line, width] = [line, [], sizes[node][0] + GAP_X];
      line.push(node);
      if (above.length) pairs.push([above[Math.min(line.length, above.length) - 1], node]);
    }
  }
  return pairs;
}

function widestOf(row, sizes) {
  const area = row.reduce((sum, node) => sum + (sizes[node][0] + GAP_X) * (sizes[node][1] + GAP_Y), 0);
  return Math.max(WIDEST, 1.5 * Math.sqrt(area));
}

/** Edges over many rows or lines, and side edges, that others imply. Between the rows they would be in the way. */
function longEdges(edges, ranks, lines) {
  const found = new Set();
  const highest = ranks.reduce((most, rank) => Math.max(most, rank), 0) + 1;
  const rankOf = (node) => (node === IN ? -1 : node === OUT ? highest : ranks[node]);
  const [lower, upper] = [new Set(lines.map(([, node]) => node)), new Set(lines.map(([above]) => above))];
  const candidates = edges.map((_, edge) => edge).filter((edge) => {
    const [from, to, isSide] = edges[edge];
    return isSide || rankOf(to) - rankOf(from) > LONG || lower.has(to) || upper.has(from);
  });
  if (!candidates.length) return found;
  const readers = new Map();
  for (const [from, to, isSide] of [...edges, ...lines]) {
    if (isSide) continue;
    if (!readers.has(from)) readers.set(from, []);
    readers.get(from).push(to);
  }
  for (const edge of candidates) {
    const [from, to] = edges[edge];
    const seen = new Set();
    const waiting = (readers.get(from) ?? []).filter((node) => node !== to);
    while (waiting.length && !seen.has(to)) {
      const node = waiting.pop();
      if (seen.has(node)) continue;
      seen.add(node);
      for (const next of readers.get(node) ?? []) if (next === to || next < 0 || to < 0 || next < to) waiting.push(next);
    }
    if (seen.has(to)) found.add(edge);
  }
  return found;
}

// --- lanes --------------------------------------------------------------------------------------------------------

/** Moves rows of two lanes down until the nodes of each pair are level. */
function align(forward, backward, mirrors, nodes) {
  const middle = (block, node) => block.at.get(node)[1] + nodes[node].h / 2;
  const pairs = mirrors.filter(([b, f]) => backward.at.has(b) && forward.at.has(f))
    .map(([b, f]) => [middle(backward, b), middle(forward, f)]).sort((one, other) => one[1] - other[1]);
  const shifts = [0, 0];
  const steps = [[], []];
  let last = [-Infinity, -Infinity];
  for (const pair of pairs) {
    if (pair[0] <= last[0] || pair[1] <= last[1]) continue;
    last = pair;
    const higher = pair[0] + shifts[0] < pair[1] + shifts[1] ? 0 : 1;
    shifts[higher] += Math.abs(pair[0] + shifts[0] - pair[1] - shifts[1]);
    steps[higher].push([pair[higher], shifts[higher]]);
  }
  [backward, forward].forEach((block, lane) => {
    if (!steps[lane].length) return;
    const rows = new Map();
    for (const node of block.at.keys()) {
      const at = middle(block, node);
      rows.set(at, Math.max(rows.get(at) ?? 0, nodes[node].h / 2));
    }
    const shiftOf = (y) => steps[lane].reduce((shift, [at, more]) => (y >= at - rows.get(at) - 1 ? more : shift), 0);
    for (const [node, [x, y]] of block.at) block.at.set(node, [x, y + shiftOf(middle(block, node))]);
    for (const [edge, points] of block.routes) block.routes.set(edge, points.map(([x, y]) => [x, y + shiftOf(y)]));
    block.height += shifts[lane];
  });
}

function beside(left, right) {
  if (!left.at.size) return right;
  if (!right.at.size) return left;
  const dx = left.width + LANE_GAP;
  const at = new Map(left.at);
  const routes = new Map(left.routes);
  for (const [node, [x, y]] of right.at) at.set(node, [x + dx, y]);
  for (const [edge, points] of right.routes) routes.set(edge, points.map(([x, y]) => [x + dx, y]));
  return { at, routes, width: dx + right.width, height: Math.max(left.height, right.height) };
}

// --- columns ------------------------------------------------------------------------------------------------------

/** A block that is too high, cut between its rows into as many columns beside each other as fill the screen best. */
function toColumns(block, nodes, aspect) {
  if (block.height < HIGHEST / Math.min(1, aspect)) return block; // a phone is higher than wide
  const span = ({ width, height }) => Math.max(width / aspect, height);
  let best = block;
  for (let count = 2; count <= MOST_COLUMNS; count += 1) {
    const found = cutInto(count, block, nodes);
    if (span(found) < 0.9 * span(best)) best = found;
  }
  return best;
}

function cutInto(count, block, nodes) {
  const spans = [...block.at].map(([node, [, y]]) => [y, y + nodes[node].h]).sort((one, other) => one[0] - other[0]);
  const most = Math.max(HIGHEST / 2, 1.15 * block.height / count);
  const cuts = [];
  let [top, bottom] = [spans[0][0], spans[0][1]];
  let cut = null;
  for (const [start, end] of spans) {
    if (start > bottom) cut = (start + bottom) / 2;
    bottom = Math.max(bottom, end);
    if (cut !== null && bottom - top > most) {
      cuts.push(cut);
      top = cut;
      cut = null;
    }
  }
  if (!cuts.length) return block;
  const columnOf = (y) => cuts.reduce((column, at) => column + (y > at), 0);
  const columns = Array.from({ length: cuts.length + 1 }, (_, column) => ({
    top: column ? cuts[column - 1] : 0, bottom: cuts[column] ?? block.height, left: Infinity, right: -Infinity,
  }));
  const widen = (x, y, w) => {
    const column = columns[columnOf(y)];
    column.left = Math.min(column.left, x);
    column.right = Math.max(column.right, x + w);
  };
  for (const [node, [x, y]] of block.at) widen(x, y + nodes[node].h / 2, nodes[node].w);
  for (const points of block.routes.values()) for (const [x, y] of points) widen(x, y, 0);
  const margin = GAP_Y / 2;
  let width = 0;
  for (const column of columns) {
    column.dx = width - column.left;
    column.gutter = width + column.right - column.left + COLUMN_GAP / 2;
    width = column.gutter + COLUMN_GAP / 2;
  }
  const move = ([x, y], column) => [x + columns[column].dx, y - columns[column].top + margin];
  const at = new Map();
  for (const [node, [x, y]] of block.at) at.set(node, move([x, y], columnOf(y + nodes[node].h / 2)));
  // What leads from one column to a later one leaves it below, and comes in above.
  const between = ([x1], a, [x2], b, isUp) => {
    const low = columns[a].bottom - columns[a].top + margin;
    const gutter = columns[a].gutter + (isUp ? RAIL : 0);
    return [[x1 + columns[a].dx, low], [gutter, low], [gutter, 0], [x2 + columns[b].dx, 0]];
  };
  const routes = new Map();
  for (const [edge, points] of block.routes) {
    const moved = [];
    points.forEach((point, number) => {
      const column = columnOf(point[1]);
      if (number) {
        const before = points[number - 1];
        const old = columnOf(before[1]);
        if (old < column) moved.push(...between(before, old, point, column));
        if (old > column) moved.push(...between(point, column, before, old, true).reverse());
      }
      moved.push(move(point, column));
    });
    routes.set(edge, moved);
  }
  const height = Math.max(...columns.map((column) => column.bottom - column.top)) + 2 * margin;
  return { at, routes, width: width - COLUMN_GAP, height };
}
