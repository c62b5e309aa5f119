// The map on a canvas. What is too small to be seen is drawn as the group that it is in; what is outside, not at all.
import { bits, figure, percent, typeOf } from '../words.js';
import { HEADER, OPEN } from './tree.js';
import { NOT_COMPARED, NOT_DUMPED, PLACEHOLDER } from './shades.js';

const FONT = '"Segoe UI", system-ui, -apple-system, "Noto Sans", "Noto Sans CJK SC", sans-serif';
/** Pixels below which a group is drawn as one box. */
const SMALLEST = 5;
const READABLE = 0.42;
/** Below this scale only the error's way is drawn of all wires. */
const WIRES_FROM = 0.03;
const MOST_WIRES = 6000;
/** What leads from lane to lane farther than this is only drawn of the op that is looked at. */
const FARTHEST_ACROSS = 420;

export class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d', { alpha: false });
    this.widths = new Map();
  }

  /** Draws a scene: tree, shades, palette, the view {k, x, y}, and what is marked. */
  draw(scene) {
    const { context: c, canvas } = this;
    const ratio = scene.ratio;
    this.scene = scene;
    this.viewport = {
      left: -scene.view.x / scene.view.k, top: -scene.view.y / scene.view.k,
      right: (canvas.width / ratio - scene.view.x) / scene.view.k,
      bottom: (canvas.height / ratio - scene.view.y) / scene.view.k,
    };
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = scene.palette.paper;
    c.fillRect(0, 0, canvas.width / ratio, canvas.height / ratio);
    const { k, x, y } = scene.view;
    c.setTransform(ratio * k, 0, 0, ratio * k, ratio * x, ratio * y);
    this.boxes = [];
    this.groups = [];
    this.collect(-1);
    for (const group of this.groups) this.group(group);
    if (k >= WIRES_FROM && !scene.isSmall) this.wires();
    this.fills();
    if (k >= READABLE) for (const item of this.boxes) this.label(item);
    this.mark(scene.path, scene.palette.path, 3);
    this.marks();
  }

  isSeen(item) {
    const { tree } = this.scene;
    const { left, top, right, bottom } = this.viewport;
    return tree.x[item] <= right && tree.x[item] + tree.w[item] >= left
      && tree.y[item] <= bottom && tree.y[item] + tree.h[item] >= top;
  }

  collect(within) {
    const { tree, view } = this.scene;
    for (const item of tree.childrenOf(within)) {
      if (!this.isSeen(item)) continue;
      if (tree.state[item] !== OPEN || Math.max(tree.w[item], tree.h[item]) * view.k < SMALLEST) {
        this.boxes.push(item);
      } else {
        this.groups.push(item);
        this.collect(item);
      }
    }
  }

  group(item) {
    const { context: c } = this;
    const { tree, palette, view } = this.scene;
    c.fillStyle = palette.group;
    c.fillRect(tree.x[item], tree.y[item], tree.w[item], tree.h[item]);
    if (tree.w[item] * view.k < 24) return;
    c.strokeStyle = palette.line;
    c.lineWidth = 1 / view.k;
    c.strokeRect(tree.x[item], tree.y[item], tree.w[item], tree.h[item]);
    // The header stays readable and within the view.
    const size = Math.max(12, Math.min(HEADER - 6, 11 / view.k));
    if (size > tree.h[item] / 2 || tree.w[item] * view.k < 60) return;
    c.fillStyle = palette.soft;
    c.font = `600 ${size}px ${FONT}`;
    c.textBaseline = 'middle';
    const left = Math.max(tree.x[item], Math.min(this.viewport.left, tree.x[item] + tree.w[item] / 2));
    const text = `▾ ${tree.nameOf(item)}`;
    c.fillText(this.fit(text, tree.x[item] + tree.w[item] - left - 12, c.font), left + 6, tree.y[item] + HEADER / 2);
  }

  wires() {
    const { context: c } = this;
    const { tree, palette, view, marked } = this.scene;
    const shortest = 3 / view.k;
    const byWidth = new Map();
    let drawn = 0;
    for (const route of tree.routes) {
      const [x1, y1, x2, y2] = route.box;
      if (route.isSide || (route.isAcross && x2 - x1 > FARTHEST_ACROSS) || !this.isWithin(route.box) || x2 - x1 + y2 - y1 < shortest) continue;
      // A bundle of many wires is thicker; what leads from lane to lane is a hint.
      const width = route.isAcross ? 0 : Math.min(4, 1 + Math.log2(route.wires) / 2) | 0;
      if (!byWidth.has(width)) byWidth.set(width, []);
      byWidth.get(width).push(route);
      drawn += 1;
      if (drawn >= MOST_WIRES) break;
    }
    c.fillStyle = palette.wire;
    for (const [width, routes] of byWidth) {
      c.strokeStyle = width ? palette.wire : palette.across;
      c.lineWidth = Math.max(width || 1, (width || 1) * 0.8 / view.k);
      this.strokes(routes);
    }
    if (marked.size) this.mark(marked, palette.found, 2);
  }

  isWithin([x1, y1, x2, y2]) {
    const { left, top, right, bottom } = this.viewport;
    return x1 <= right && x2 >= left && y1 <= bottom && y2 >= top;
  }

  strokes(routes) {
    this.context.beginPath();
    for (const route of routes) this.route(route);
    this.context.stroke();
  }

  /** Draws the routes with these keys once more, in a colour and with points. */
  mark(keys, colour, width) {
    const { context: c } = this;
    const { tree, view } = this.scene;
    const routes = tree.routes.filter((route) => keys.has(route.key) && this.isWithin(route.box));
    c.strokeStyle = c.fillStyle = colour;
    c.lineWidth = width / Math.min(1, Math.max(view.k, 0.001) * 1.2);
    this.strokes(routes);
    const size = Math.max(3 + 1.3 * width, (1 + width) / view.k);
    for (const { points, to, isAcross } of routes) {
      if (to < 0 || (tree.state[to] === OPEN && !isAcross)) continue; // it goes on within
      const [x, y] = points[points.length - 1];
      const before = points[points.length - 2];
      const [ux, uy] = isAcross ? [Math.sign(x - before[0]), 0] : [0, Math.sign(y - before[1]) || 1];
      c.beginPath();
      c.moveTo(x, y);
      c.lineTo(x - ux * size - uy * size * 0.6, y - uy * size - ux * size * 0.6);
      c.lineTo(x - ux * size + uy * size * 0.6, y - uy * size + ux * size * 0.6);
      c.fill();
    }
  }

  route({ points, isAcross }) {
    const { context: c } = this;
    const isPlain = this.scene.view.k < 0.15;
    c.moveTo(...points[0]);
    for (let at = 1; at < points.length; at += 1) {
      const [[x1, y1], [x2, y2]] = [points[at - 1], points[at]];
      if (isPlain || x1 === x2 || y1 === y2) c.lineTo(x2, y2);
      else if (isAcross) c.bezierCurveTo((x1 + x2) / 2, y1, (x1 + x2) / 2, y2, x2, y2);
      else c.bezierCurveTo(x1, (y1 + y2) / 2, x2, (y1 + y2) / 2, x2, y2);
    }
  }

  colour(level) {
    const { palette, shades } = this.scene;
    if (level === PLACEHOLDER) return palette.paper;
    if (level < 0) return palette.grey;
    return shades.kinds ? palette.kinds[level] : palette.levels[level];
  }

  fills() {
    const { context: c } = this;
    const { tree, view, levels, palette } = this.scene;
    const byLevel = new Map();
    for (const item of this.boxes) {
      const one = levels[item];
      if (!byLevel.has(one)) byLevel.set(one, []);
      byLevel.get(one).push(item);
    }
    for (const [one, items] of byLevel) {
      c.fillStyle = this.colour(one);
      for (const item of items) c.fillRect(tree.x[item], tree.y[item], tree.w[item], tree.h[item]);
      if (one === NOT_DUMPED && view.k > 0.1) {
        c.fillStyle = this.hatching();
        for (const item of items) c.fillRect(tree.x[item], tree.y[item], tree.w[item], tree.h[item]);
      }
    }
    if (view.k < 0.08) return;
    c.strokeStyle = palette.line;
    c.lineWidth = Math.min(1, 0.6 / view.k);
    c.beginPath();
    for (const item of this.boxes) c.rect(tree.x[item], tree.y[item], tree.w[item], tree.h[item]);
    c.stroke();
    if (this.scene.shades.kinds) return;
    c.fillStyle = palette.text; // the level as a length
    for (const item of this.boxes) {
      if (levels[item] > 0) c.fillRect(tree.x[item], tree.y[item] + tree.h[item] - 4, tree.w[item] * levels[item] / 5, 4);
    }
  }

  hatching() {
    if (this.hatched?.of !== this.scene.palette) {
      const tile = document.createElement('canvas');
      tile.width = tile.height = 8;
      const c = tile.getContext('2d');
      c.strokeStyle = this.scene.palette.line;
      c.lineWidth = 1.4;
      c.beginPath();
      for (const at of [-8, 0, 8]) {
        c.moveTo(at, 8);
        c.lineTo(at + 8, 0);
      }
      c.stroke();
      this.hatched = { of: this.scene.palette, pattern: this.context.createPattern(tile, 'repeat') };
    }
    return this.hatched.pattern;
  }

  label(item) {
    const { context: c } = this;
    const { tree, palette, levels, shades, result } = this.scene;
    const strong = !shades.kinds && levels[item] >= 4;
    const isGroup = tree.isGroup(item);
    c.fillStyle = strong || (shades.kinds && levels[item] >= 0) ? this.ink(levels[item]) : palette.text;
    c.textBaseline = 'middle';
    c.font = `600 13px ${FONT}`;
    const name = tree.nameOf(item);
    const mark = this.scene.errors.has(item) ? '✖ ' : '';
    const room = tree.w[item] - 16;
    const short = isGroup ? `▸ ${tree.isSection[item - tree.ops] ? name : this.fitEnd(name, room - 14, c.font)}` : mark + this.shortName(item);
    c.fillText(this.fit(short, room, c.font), tree.x[item] + 8, tree.y[item] + 13);
    if (tree.h[item] < 30) return;
    c.font = `11.5px ${FONT}`;
    // The figure stays whole, however long the type is.
    const value = isGroup ? '' : this.valueLine(item);
    const below = isGroup ? this.groupLine(item) : typeOf(result.ops, item);
    const rest = room - (value ? c.measureText(value).width : 0);
    c.fillText(this.fit(below, rest, c.font) + value, tree.x[item] + 8, tree.y[item] + 29);
  }

  /** Of a fused op the last parts of the names of what it was made of, of a recorded call its own. */
  shortName(op) {
    const label = this.scene.result.ops.label[op];
    if (label) return label;
    const originals = this.scene.result.ops.originals[op] ?? [];
    const names = originals.length > 1 ? originals : [this.scene.result.ops.name[op]];
    return names.map((name) => name.split('/').filter(Boolean).slice(-1)[0] ?? name).join('+');
  }

  ink(level) {
    const { palette, shades } = this.scene;
    if (shades.kinds) return luminance(palette.kinds[level]) > 0.35 ? '#16181d' : '#ffffff';
    return luminance(palette.levels[level]) > 0.35 ? '#16181d' : '#ffffff';
  }

  valueLine(item) {
    const { shades, result } = this.scene;
    if (shades.kinds) return '';
    const value = result.ops[shades.mode][item];
    if (value === null) return '';
    const text = shades.mode === 'own' ? percent(value) : shades.mode === 'headroom' ? bits(value)
      : figure(value, 6);
    return ` · ${text}`;
  }

  groupLine(item) {
    const { tree, wrong } = this.scene;
    const bad = wrong[item];
    return `${tree.sizes[item - tree.ops]}${bad ? ` · ✖ ${bad}` : ''}`;
  }

  /** The end of a name, by which the groups of one scope differ. */
  fitEnd(text, width, font) {
    if (this.fit(text, width, font) === text) return text;
    const parts = text.split(/(?<=[/.])/);
    while (parts.length > 1 && this.fit(`…${parts.join('')}`, width, font) !== `…${parts.join('')}`) parts.shift();
    return `…${parts.join('')}`;
  }

  /** A text cut to a width; widths of one font are kept. */
  fit(text, width, font) {
    const key = `${font}\n${width | 0}\n${text}`;
    const known = this.widths.get(key);
    if (known !== undefined) return known;
    if (this.widths.size > 20000) this.widths.clear();
    let fitted = text.length > 200 ? text.slice(0, 200) : text;
    if (this.context.measureText(fitted).width > width) {
      let [low, high] = [0, fitted.length];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.context.measureText(`${fitted.slice(0, middle)}…`).width <= width) low = middle;
        else high = middle - 1;
      }
      fitted = low ? `${fitted.slice(0, low)}…` : '';
    }
    this.widths.set(key, fitted);
    return fitted;
  }

  marks() {
    const { tree, result, palette, found, selected, hovered } = this.scene;
    for (const item of found) if (this.isSeen(item)) this.outline(item, palette.found, 2, [5, 3]);
    if (hovered >= 0) this.outline(hovered, palette.soft, 1.5, []);
    if (result.culprit >= 0 && result.culprit < tree.ops) {
      const item = tree.shownAs[result.culprit];
      this.outline(item, palette.mark, 3, []);
      this.star(item);
    }
    if (selected >= 0 && selected < tree.ops) this.outline(tree.shownAs[selected], palette.found, 3, []);
  }

  outline(item, colour, width, dash) {
    const { context: c } = this;
    const { tree, view } = this.scene;
    const away = 3 / view.k;
    const least = 8 / view.k; // a single op on a large map is still seen
    const w = Math.max(tree.w[item], least);
    const h = Math.max(tree.h[item], least);
    c.strokeStyle = colour;
    c.lineWidth = width / view.k;
    c.setLineDash(dash.map((one) => one / view.k));
    c.strokeRect(tree.x[item] + tree.w[item] / 2 - w / 2 - away, tree.y[item] + tree.h[item] / 2 - h / 2 - away,
      w + 2 * away, h + 2 * away);
    c.setLineDash([]);
  }

  star(item) {
    const { context: c } = this;
    const { tree, view, palette } = this.scene;
    const size = Math.max(18, 16 / view.k);
    c.font = `700 ${size}px ${FONT}`;
    c.textBaseline = 'middle';
    c.fillStyle = palette.mark;
    c.fillText('★', tree.x[item] - size * 1.1 - 4 / view.k, tree.y[item] + tree.h[item] / 2);
  }
}

function luminance(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** The level of each item, of a group the worst of its ops, and how many ops of each item are errors. */
export function levelsOf(tree, shades, result) {
  const levels = new Int8Array(tree.total).fill(PLACEHOLDER);
  const wrong = new Int32Array(tree.total);
  const isKind = Boolean(shades.kinds);
  const counts = isKind ? Array.from({ length: tree.total - tree.ops }, () => new Map()) : null;
  for (let op = 0; op < tree.ops; op += 1) {
    levels[op] = shades.levels[op];
    const bad = result.isError(op) ? 1 : 0;
    for (let at = tree.parent[op]; at >= 0; at = tree.parent[at + tree.ops]) {
      wrong[at + tree.ops] += bad;
      if (isKind) counts[at].set(levels[op], (counts[at].get(levels[op]) ?? 0) + 1);
      else levels[at + tree.ops] = Math.max(levels[at + tree.ops], levels[op]);
    }
  }
  if (isKind) {
    counts.forEach((of, at) => {
      const most = [...of].filter(([one]) => one >= 0).sort((a, b) => b[1] - a[1])[0];
      levels[at + tree.ops] = most ? most[0] : NOT_COMPARED;
    });
  }
  return { levels, wrong };
}
