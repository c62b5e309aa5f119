// A heat map: places × ops on a canvas.
import { PALETTES } from './map/shades.js';

const MOST_HEIGHT = 520;
const LEAST_ROW = 1;
const MOST_ROW = 18;
/** Pixels of a cell from which on more than its colour can be drawn, and of the corner that marks a cell. */
const LEAST_MARKED = 7;
const CORNER = 6;
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** Where a place and an op lie on the canvas, in pixels of the page. */
function grid(map, canvas) {
  const width = Math.max(1, canvas.clientWidth);
  const row = Math.min(MOST_ROW, Math.max(LEAST_ROW, MOST_HEIGHT / map.places.length));
  return { width, height: Math.max(1, Math.round(row * map.places.length)), row, column: width / map.ops.length };
}

/**
 * Draws a map: `rows` have a sign a cell, a level or what is below '0'; where several cells share a pixel the worst of
 * them is seen. `star` is a cell that gets a star, `cell` the one that the keyboard is at.
 */
export function drawHeat(canvas, map, { isDark, star, cell }) {
  const { width, height, row, column } = grid(map, canvas);
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context.scale(scale, scale);
  const { levels, grey } = PALETTES[isDark ? 'dark' : 'light'];
  const lines = Math.min(map.places.length, Math.max(1, Math.floor(height)));
  const across = Math.min(map.ops.length, Math.max(1, Math.floor(width)));
  for (let line = 0; line < lines; line += 1) {
    const from = Math.floor((line * map.places.length) / lines);
    const to = Math.max(from + 1, Math.floor(((line + 1) * map.places.length) / lines));
    for (let at = 0; at < across; at += 1) {
      const first = Math.floor((at * map.ops.length) / across);
      const last = Math.max(first + 1, Math.floor(((at + 1) * map.ops.length) / across));
      let worst = -1;
      for (let which = from; which < to; which += 1) {
        for (let op = first; op < last; op += 1) worst = Math.max(worst, map.rows[which].charCodeAt(op) - 48);
      }
      context.fillStyle = worst < 0 ? grey : levels[worst];
      context.fillRect((at * width) / across, (line * height) / lines, Math.max(column, width / across) + 0.5, Math.max(row, height / lines) + 0.5);
    }
  }
  mark(context, map, canvas, { isDark, star, cell });
}

/** What is told by more than colour, where cells are large enough: levels by lengths, cells that `own` marks by a corner, one by a star. */
function mark(context, map, canvas, { isDark, star, cell }) {
  const { width, height, row, column } = grid(map, canvas);
  const { text, mark: colour, paper } = PALETTES[isDark ? 'dark' : 'light'];
  if (column >= LEAST_MARKED && row >= LEAST_MARKED) {
    map.rows.forEach((signs, at) => {
      for (let op = 0; op < map.ops.length; op += 1) {
        const [left, top] = [op * column, at * row];
        const level = signs.charCodeAt(op) - 48;
        context.fillStyle = level === 5 ? paper : text;
        if (level > 0) context.fillRect(left, top + row - 3, (column * level) / 5 - 1, 2);
        if (map.own?.[at][op] !== '1') continue;
        context.beginPath();
        context.moveTo(left, top);
        context.lineTo(left + CORNER, top);
        context.lineTo(left, top + CORNER);
        context.fill();
      }
    });
  }
  const { at, op } = star ?? { at: -1, op: -1 };
  if (at >= 0 && op >= 0) {
    const size = Math.max(column, LEAST_MARKED);
    const tall = Math.max(row, LEAST_MARKED);
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.strokeRect((op + 0.5) * column - size / 2 + 1, Math.min(height - tall, at * row) + 1, size - 2, tall - 2);
    context.fillStyle = colour;
    context.font = '13px sans-serif';
    context.textBaseline = 'middle';
    const isAtEnd = (op + 1) * column + 16 > width;
    context.fillText('★', isAtEnd ? op * column - 15 : (op + 1) * column + 2, Math.min(height - 7, Math.max(7, (at + 0.5) * row)));
  }
  if (cell && document.activeElement === canvas) {
    context.strokeStyle = text;
    context.lineWidth = 2;
    context.strokeRect(cell.op * column, cell.at * row, Math.max(column, 4), Math.max(row, 4));
  }
}

/** The cell below the pointer. */
export function cellAt(map, event) {
  const { width, height } = grid(map, event.target);
  const within = (offset, size, number) => Math.min(number - 1, Math.max(0, Math.floor((offset * number) / size)));
  return { at: within(event.offsetY, height, map.places.length), op: within(event.offsetX, width, map.ops.length) };
}

/** The cell that an arrow key leads to; null for another key. */
export function movedBy(map, { at, op }, key) {
  const step = ARROWS[key];
  return step ? {
    at: Math.min(map.places.length - 1, Math.max(0, at + step[0])), op: Math.min(map.ops.length - 1, Math.max(0, op + step[1])),
  } : null;
}
