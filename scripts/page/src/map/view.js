// The map: a canvas with zoom and pan, a minimap, and what the keyboard and the search do on it.
import { select } from 'd3-selection';
import { zoom, zoomIdentity } from 'd3-zoom';
import { levelsOf, Painter } from './draw.js';
import { PALETTES, shadesOf } from './shades.js';
import { Tree } from './tree.js';

const FARTHEST = 0.002;
const NEAREST = 4;
/** Below this scale labels are too small to be read. */
const READABLE = 0.6;
const MINIMAP = 168;

export class MapView {
  /** `chosen(op)` is called when an op is clicked. */
  constructor(holder, result, { chosen, isDark }) {
    this.result = result;
    this.chosen = chosen;
    this.errors = new Set(result.errors);
    this.canvas = holder.querySelector('.map-canvas');
    this.mini = holder.querySelector('.map-mini');
    const { clientWidth: width, clientHeight: height } = this.canvas;
    this.tree = new Tree(result, Math.max(0.5, Math.min(1.8, width / Math.max(1, height) || 1.4)));
    this.painter = new Painter(this.canvas);
    this.found = [];
    this.selected = -1;
    this.hovered = -1;
    this.mode = null;
    this.frames = 0;
    this.palette = PALETTES[isDark ? 'dark' : 'light'];
    this.view = { k: 1, x: 0, y: 0 };
    this.marked = new Set();
    const path = result.error_path;
    this.path = this.tree.keysOf(path.slice(1).map((op, at) => [path[at], op]));
    if (this.hasCulprit()) this.tree.reveal(result.culprit);
    this.tree.compose();
    this.zoom = zoom().scaleExtent([FARTHEST, NEAREST]).clickDistance(4)
      .on('zoom', ({ transform }) => {
        this.view = transform;
        this.redraw();
      });
    select(this.canvas).call(this.zoom).on('dblclick.zoom', null);
    this.canvas.addEventListener('click', (event) => this.clicked(event));
    this.canvas.addEventListener('dblclick', (event) => this.clicked(event, true));
    this.canvas.addEventListener('pointermove', (event) => this.moved(event));
    this.canvas.addEventListener('pointerleave', () => this.hover(-1));
    this.mini.addEventListener('pointerdown', (event) => this.jump(event));
    this.mini.addEventListener('pointermove', (event) => event.buttons && this.jump(event));
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.canvas);
    this.isPlaced = false;
  }

  hasCulprit() {
    return this.result.culprit >= 0 && this.result.culprit < this.tree.ops;
  }

  destroy() {
    this.observer.disconnect();
  }

  // --- what is shown ---

  colourBy(mode) {
    this.mode = mode;
    this.shades = shadesOf(this.result, mode);
    Object.assign(this, levelsOf(this.tree, this.shades, this.result));
    this.miniature = null;
    this.redraw();
    return this.shades;
  }

  setDark(isDark) {
    this.palette = PALETTES[isDark ? 'dark' : 'light'];
    this.miniature = null;
    this.redraw();
  }

  setFound(ops) {
    this.found = ops.filter((op) => op < this.tree.ops);
    this.redraw();
  }

  setSelected(op) {
    this.selected = op;
    const { fed, feeds } = this.result;
    const isOp = op >= 0 && op < this.tree.ops;
    this.marked = isOp ? this.tree.keysOf([...fed[op].map((one) => [one.op, op]), ...feeds[op].map((one) => [op, one.op])])
      : new Set();
    this.redraw();
  }

  // --- where ---

  resize() {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    this.ratio = ratio;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    if (!this.isPlaced) {
      this.isPlaced = true;
      this.begin();
    }
    this.draw();
  }

  transformTo(view, isSmooth) {
    const target = select(this.canvas);
    const calm = window.matchMedia('(prefers-reduced-motion: reduce)').matches;
    (isSmooth && !calm ? target.transition().duration(300) : target).call(this.zoom.transform, view);
  }

  /** The map where all of it can be read; else the path of the error from the culprit on, or the map's beginning. */
  begin() {
    const path = [...new Set(this.result.error_path.map((op) => this.tree.shownAs[op]))];
    if (this.wholeScale() >= READABLE || !this.hasCulprit()) this.fit(false, READABLE);
    else if (path.length > 1) this.showAll(path);
    else this.goTo(this.result.culprit, false);
  }

  wholeScale() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    return Math.min(1, (width - 40) / this.tree.width, (height - 40) / this.tree.height);
  }

  /** Boxes, as many from the first on as can be read. */
  showAll(items) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const { x, y, w, h } = this.tree;
    const span = (from, size) => [Math.min(...items.map((item) => from[item])), Math.max(...items.map((item) => from[item] + size[item]))];
    const k = Math.max(READABLE, Math.min(1, (width - 80) / (span(x, w)[1] - span(x, w)[0]), (height - 60) / (span(y, h)[1] - span(y, h)[0])));
    const at = (from, size, room) => {
      const [low, high] = span(from, size);
      const middle = room / 2 - (low + high) / 2 * k;
      // What is too much for the screen is shown from the first box on.
      const [first, last] = [40 - from[items[0]] * k, room - 40 - (from[items[0]] + size[items[0]]) * k];
      return Math.max(first, Math.min(last, middle));
    };
    this.transformTo(zoomIdentity.translate(at(x, w, width), at(y, h, height)).scale(k), false);
  }

  /** All of the map; its beginning, where all of it would be smaller than `least`. */
  fit(isSmooth = true, least = FARTHEST) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const k = Math.max(least, this.wholeScale());
    const start = (room, size) => (size * k > room - 20 && least > FARTHEST ? 20 : (room - size * k) / 2);
    this.transformTo(zoomIdentity.translate(start(width, this.tree.width), start(height, this.tree.height)).scale(k), isSmooth);
  }

  /** One op in the middle, its groups open. */
  goTo(op, isSmooth = true) {
    if (op < 0 || op >= this.tree.ops) return;
    if (this.isBusy) return;
    if (this.tree.reveal(op)) this.recompose();
    this.centre(this.tree.shownAs[op], Math.max(0.8, Math.min(1.2, this.view.k)), isSmooth);
  }

  centre(item, k, isSmooth) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const x = this.tree.x[item] + this.tree.w[item] / 2;
    const y = this.tree.y[item] + this.tree.h[item] / 2;
    // On a phone the panel covers the lower part.
    const panel = document.getElementById('panel');
    const covered = panel && !panel.hidden && panel.offsetWidth >= width - 1
      ? Math.max(0, this.canvas.getBoundingClientRect().bottom - panel.getBoundingClientRect().top) : 0;
    const middle = Math.max(40, (height - covered) / 2);
    this.transformTo(zoomIdentity.translate(width / 2 - x * k, middle - y * k).scale(k), isSmooth);
  }

  zoomBy(factor) {
    select(this.canvas).transition().duration(150).call(this.zoom.scaleBy, factor);
  }

  panBy(x, y) {
    select(this.canvas).call(this.zoom.translateBy, x / this.view.k, y / this.view.k);
  }

  /** After groups were opened or closed: an item stays where it was on the screen. */
  recompose(anchor = -1, isMeasured = false) {
    const before = anchor >= 0 ? [this.tree.x[anchor], this.tree.y[anchor]] : null;
    this.tree.compose(isMeasured);
    this.miniature = null;
    if (before) {
      const { k, x, y } = this.view;
      this.transformTo(zoomIdentity.translate(x + (before[0] - this.tree.x[anchor]) * k,
        y + (before[1] - this.tree.y[anchor]) * k).scale(k), false);
    }
    this.redraw();
  }

  toggle(group) {
    this.tree.toggle(group);
    this.recompose(group);
  }

  async openAll() {
    if (this.isBusy) return;
    this.isBusy = true;
    this.canvas.style.cursor = 'progress';
    await this.tree.openAll();
    this.canvas.style.cursor = 'grab';
    this.isBusy = false;
    this.recompose(-1, true);
    this.begin();
  }

  closeAll() {
    if (this.isBusy) return;
    this.tree.closeAll();
    this.recompose();
    this.fit(false);
  }

  // --- the pointer ---

  at(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const { k, x, y } = this.view;
    return this.tree.hit((event.clientX - left - x) / k, (event.clientY - top - y) / k);
  }

  clicked(event, isDouble = false) {
    if (this.isBusy) return;
    const item = this.at(event);
    if (item < 0) return;
    if (!this.tree.isGroup(item)) {
      if (!isDouble) this.chosen(item);
    } else if (this.tree.state[item] !== 2 || isDouble || this.isHeader(event, item)) {
      if (this.tree.state[item] !== 2 || !isDouble) this.toggle(item);
    }
  }

  isHeader(event, item) {
    const { top } = this.canvas.getBoundingClientRect();
    return (event.clientY - top - this.view.y) / this.view.k - this.tree.y[item] <= 24;
  }

  moved(event) {
    if (event.buttons) return;
    const item = this.at(event);
    this.hover(item >= 0 && this.tree.state[item] === 2 && !this.isHeader(event, item) ? -1 : item);
  }

  hover(item) {
    if (item === this.hovered) return;
    this.hovered = item;
    this.canvas.title = item >= 0 ? this.tree.nameOf(item) : '';
    this.canvas.style.cursor = item >= 0 ? 'pointer' : 'grab';
    this.redraw();
  }

  // --- drawing ---

  redraw() {
    if (this.waiting || this.isBusy || !this.shades) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.draw();
    });
  }

  draw() {
    if (!this.shades || this.isBusy || !this.ratio || !this.canvas.clientWidth) return;
    this.painter.draw({
      tree: this.tree, result: this.result, shades: this.shades, levels: this.levels, wrong: this.wrong,
      palette: this.palette, view: this.view, ratio: this.ratio, errors: this.errors, selected: this.selected, path: this.path, marked: this.marked,
      hovered: this.hovered, found: [...new Set(this.found.slice(0, 2000).map((op) => this.tree.shownAs[op]))],
    });
    this.drawMinimap();
    this.frames += 1;
  }

  drawMinimap() {
    const { tree, ratio } = this;
    const k = Math.min(MINIMAP / Math.max(1, tree.width), MINIMAP / Math.max(1, tree.height));
    const width = Math.max(24, Math.round(tree.width * k));
    const height = Math.max(24, Math.round(tree.height * k));
    if (!this.miniature) {
      this.miniature = document.createElement('canvas');
      this.miniature.width = width * ratio;
      this.miniature.height = height * ratio;
      new Painter(this.miniature).draw({
        tree, result: this.result, shades: this.shades, levels: this.levels, wrong: this.wrong, palette: this.palette,
        view: { k, x: 0, y: 0 }, ratio, errors: this.errors, selected: -1, hovered: -1, found: [], isSmall: true,
        path: this.path, marked: new Set(),
      });
      this.mini.width = width * ratio;
      this.mini.height = height * ratio;
      this.mini.style.width = `${width}px`;
      this.mini.style.height = `${height}px`;
    }
    this.miniK = k;
    const c = this.mini.getContext('2d');
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.drawImage(this.miniature, 0, 0);
    c.scale(ratio, ratio);
    c.strokeStyle = this.palette.found;
    c.lineWidth = 2;
    const { k: scale, x, y } = this.view;
    const { clientWidth, clientHeight } = this.canvas;
    c.strokeRect((-x / scale) * k, (-y / scale) * k, Math.max(3, (clientWidth / scale) * k),
      Math.max(3, (clientHeight / scale) * k));
  }

  jump(event) {
    const { left, top } = this.mini.getBoundingClientRect();
    const x = (event.clientX - left) / this.miniK;
    const y = (event.clientY - top) / this.miniK;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const { k } = this.view;
    this.transformTo(zoomIdentity.translate(width / 2 - x * k, height / 2 - y * k).scale(k), false);
  }
}
