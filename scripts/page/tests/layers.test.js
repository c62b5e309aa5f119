// The layers of a group: with the flow, level with their mirrors, without overlaps, and no needles.
import assert from 'node:assert/strict';
import test from 'node:test';
import { BACKWARD, FORWARD, IN, layGroup, OUT, UPDATE } from '../src/map/layers.js';

const node = (lane = FORWARD, w = 148, h = 40) => ({ w, h, lane });
const chain = (count, from = 0) => Array.from({ length: count - 1 }, (_, at) => ({ from: from + at, to: from + at + 1 }));

/** No two nodes overlap, all are within the group, and each edge has a route. */
function checked(group) {
  const laid = layGroup(group);
  const { x, y, width, height, routes } = laid;
  group.nodes.forEach(({ w, h }, a) => {
    assert.ok(x[a] >= -0.01 && y[a] >= -0.01 && x[a] + w <= width + 0.01 && y[a] + h <= height + 0.01, `${a} is within`);
    for (let b = 0; b < a; b += 1) {
      const { w: bw, h: bh } = group.nodes[b];
      assert.ok(x[a] + w <= x[b] || x[b] + bw <= x[a] || y[a] + h <= y[b] || y[b] + bh <= y[a], `${a} and ${b} overlap`);
    }
  });
  group.edges.forEach((edge, at) => assert.ok(routes[at].length >= 2 && routes[at].flat().every(Number.isFinite), JSON.stringify(edge)));
  return laid;
}

/** Blocks of five ops with a residual around each, their gradients, and an update of each: some edges of all kinds. */
function resnet(blocks) {
  const nodes = [];
  const edges = [];
  const mirrors = [];
  for (let op = 0; op < 5 * blocks; op += 1) nodes.push(node(FORWARD));
  for (let op = 0; op < 5 * blocks; op += 1) nodes.push(node(BACKWARD));
  for (let op = 0; op < blocks; op += 1) nodes.push(node(UPDATE));
  const backward = 5 * blocks;
  edges.push(...chain(10 * blocks));
  for (let block = 0; block < blocks; block += 1) {
    if (block) edges.push({ from: 5 * block - 1, to: 5 * block + 3 }, { from: backward + 5 * block - 1, to: backward + 5 * block + 3 });
    edges.push({ from: backward + 5 * block, to: 10 * blocks + block });
  }
  for (let op = 0; op < 5 * blocks; op += 1) {
    mirrors.push([backward + op, backward - 1 - op]);
    edges.push({ from: op, to: 10 * blocks - 1 - op });
  }
  return { nodes, edges, mirrors, aspect: 1.4 };
}

test('no edge of a residual network goes against the flow', () => {
  const group = resnet(3);
  const { x, y } = checked(group);
  let upward = 0;
  for (const { from, to } of group.edges) {
    if (group.nodes[from].lane !== group.nodes[to].lane) continue;
    const [above, below] = group.nodes[from].lane === BACKWARD ? [to, from] : [from, to];
    if (y[above] + 40 > y[below]) upward += 1;
  }
  assert.equal(upward, 0);
  for (const [backward, forward] of group.mirrors) {
    assert.equal(Math.round(y[backward]), Math.round(y[forward]));
    assert.ok(x[backward] > x[forward] + 148);
  }
});

test('a route passes no box on its way', () => {
  const group = { nodes: Array.from({ length: 8 }, () => node()), edges: [...chain(8), { from: 1, to: 6 }] };
  const { x, y, routes } = checked(group);
  const around = routes[7].slice(1, -1);
  assert.ok(around.length);
  for (const [px, py] of around) {
    for (let at = 2; at < 6; at += 1) assert.ok(px < x[at] || px > x[at] + 148 || py < y[at] || py > y[at] + 40);
  }
});

test('a long chain is put into columns, in order', () => {
  const group = resnet(12);
  const { x, y, width, height } = checked(group);
  assert.ok(width / height < 4 && height / width < 4, `${width} × ${height}`);
  for (let at = 1; at < 60; at += 1) assert.ok(y[at] > y[at - 1] || x[at] > x[at - 1] + 148);
});

test('a phone is filled from above', () => {
  const group = { nodes: Array.from({ length: 24 }, () => node()), edges: chain(24) };
  assert.ok(checked({ ...group, aspect: 0.6 }).width < 200);
  assert.ok(checked({ ...group, aspect: 1.6 }).width > 300);
});

test('what nothing connects stands in lines', () => {
  const nodes = Array.from({ length: 90 }, () => node(UPDATE));
  const edges = nodes.flatMap((_, at) => [{ from: IN, to: at }, { from: at, to: OUT }]);
  const { width, height } = checked({ nodes, edges });
  assert.ok(width < 2000 && height < 2000, `${width} × ${height}`);
});

test('many readers of an op stand in lines below it', () => {
  const nodes = Array.from({ length: 60 }, () => node());
  const edges = nodes.slice(1).map((_, at) => ({ from: 0, to: at + 1 }));
  const { y, width, height } = checked({ nodes, edges });
  assert.ok(width < 2500 && height < 2500, `${width} × ${height}`);
  assert.ok(y.slice(1).every((one) => one > y[0]));
});

test('an edge to all layers does not stand between them', () => {
  const nodes = Array.from({ length: 40 }, () => node());
  const edges = [...chain(40), ...Array.from({ length: 38 }, (_, at) => ({ from: 0, to: at + 2 }))];
  const { height, width } = checked({ nodes, edges, aspect: 0.5 });
  assert.ok(Math.max(width, height) < 4000, `${width} × ${height}`);
});

test('any group', () => {
  let seed = 7;
  const random = (below) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return Math.floor((seed / 2147483648) * below);
  };
  for (let round = 0; round < 25; round += 1) {
    const nodes = Array.from({ length: 1 + random(60) }, () => node(random(3), 60 + random(400), 20 + random(300)));
    const edges = new Map();
    for (let at = random(2 * nodes.length); at > 0; at -= 1) {
      const [a, b] = [random(nodes.length), random(nodes.length)].sort((one, other) => one - other);
      if (a < b) edges.set(`${a}:${b}`, { from: a, to: b, isSide: !random(5) });
    }
    const ports = nodes[0].lane;
    nodes.forEach((one, at) => {
      if (one.lane === ports && !random(4)) edges.set(`in${at}`, { from: IN, to: at });
      if (one.lane === ports && !random(4)) edges.set(`out${at}`, { from: at, to: OUT });
    });
    const of = (lane) => nodes.map((_, at) => at).filter((at) => nodes[at].lane === lane);
    const mirrors = of(BACKWARD).slice(0, of(FORWARD).length).map((at, number) => [at, of(FORWARD)[number]]);
    checked({ nodes, edges: [...edges.values()], mirrors, aspect: 0.5 + random(3) / 2 });
  }
});
