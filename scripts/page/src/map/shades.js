// By what ops are coloured: six levels of what is asked, or kinds. A level also has a length, so that it can be told
// without colours.
import { bits, cosine, figure, percent } from '../words.js';

const LEVELS = {
  own: [1e-6, 1e-4, 1e-3, 1e-2, 1e-1],
  cosine: [1e-6, 1e-4, 1e-3, 1e-2, 1e-1], // of 1 - cosine
  beyond: [0.25, 0.5, 1, 2, 10],
  headroom: [8, 4, 2, 1, 0], // bits, falling
};
export const MODES = ['own', 'cosine', 'beyond', 'headroom', 'dtype', 'pass'];
export const NOT_COMPARED = -1;
export const NOT_DUMPED = -2;
/** An op that stands for a tensor which no recorded call put out: a parameter, an input, a view. */
export const PLACEHOLDER = -3;
export const KINDS = 8;

/** Colours of the levels, and of kinds: told apart by people who do not see all colours (Paul Tol's schemes). */
export const PALETTES = {
  light: {
    levels: ['#d9e8f2', '#a5cbe3', '#f4e3a1', '#f2b04c', '#e0662e', '#a50f15'],
    kinds: ['#4477aa', '#ee6677', '#228833', '#ccbb44', '#66ccee', '#aa3377', '#997700', '#bbbbbb'],
    grey: '#d4d4d8', paper: '#ffffff', group: 'rgba(60,80,120,0.06)', line: '#9aa3b2', text: '#16181d', soft: '#5b6472',
    wire: 'rgba(80,90,112,0.6)', across: 'rgba(90,100,120,0.25)', path: '#c1121f', mark: '#7b2cbf', found: '#0b63ce', white: '#ffffff',
  },
  dark: {
    levels: ['#21394a', '#2f6690', '#8a7a2a', '#b9741b', '#d1552a', '#e5383b'],
    kinds: ['#5b8fc7', '#d05668', '#38985a', '#9b8f34', '#3f93ad', '#a8488b', '#8d7416', '#6f7480'],
    grey: '#3d424d', paper: '#14161b', group: 'rgba(150,170,220,0.07)', line: '#5c6675', text: '#f0f2f5', soft: '#a5adba',
    wire: 'rgba(160,175,200,0.55)', across: 'rgba(150,165,190,0.22)', path: '#ff5d62', mark: '#c77dff', found: '#6cb2ff', white: '#ffffff',
  },
};

const FALLING = new Set(['headroom']);

function level(value, mode) {
  if (value === null) return NOT_COMPARED;
  if (Number.isNaN(value)) return 5;
  const limits = LEVELS[mode];
  for (let at = 0; at < limits.length; at += 1) {
    if (FALLING.has(mode) ? value > limits[at] : value < limits[at]) return at;
  }
  return 5;
}

function values(result, mode) {
  const { ops } = result;
  if (mode === 'cosine') return ops.cosine.map((value) => (value === null ? null : 1 - value));
  return ops[mode];
}

/** The levels of all ops for one mode, with what the legend needs. */
export function shadesOf(result, mode) {
  const { ops } = result;
  const absent = (op) => (ops.status[op] === 'no_npu_dump' ? NOT_DUMPED : NOT_COMPARED);
  if (mode === 'dtype' || mode === 'pass') {
    const kindOf = mode === 'dtype' ? (op) => ops.dtype[op] : (op) => (ops.pass[op] ?? [])[0] ?? '';
    const counts = new Map();
    for (let op = 0; op < result.count; op += 1) counts.set(kindOf(op), (counts.get(kindOf(op)) ?? 0) + 1);
    counts.delete('');
    const kinds = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([name]) => name);
    const at = new Map(kinds.map((name, number) => [name, Math.min(number, KINDS - 1)]));
    const levels = new Int8Array(result.count);
    for (let op = 0; op < result.count; op += 1) levels[op] = at.get(kindOf(op)) ?? absent(op);
    return { mode, levels, kinds: kinds.length > KINDS ? [...kinds.slice(0, KINDS - 1), '…'] : kinds };
  }
  const of = values(result, mode);
  const levels = new Int8Array(result.count);
  for (let op = 0; op < result.count; op += 1) {
    const found = level(of[op], mode);
    levels[op] = ops.placeholder[op] ? PLACEHOLDER : found === NOT_COMPARED ? absent(op) : found;
  }
  return { mode, levels, kinds: null };
}

/** The texts of the six levels. */
export function legend(mode) {
  const limits = LEVELS[mode];
  if (!limits) return []; // kinds, which are known once the map is drawn
  if (mode === 'headroom') return limits.map((one) => `> ${bits(one)}`).concat('0');
  if (mode === 'cosine') return [...limits.map((one) => `> ${figure(1 - one)}`), `≤ ${cosine(0.9)}`];
  const show = mode === 'own' ? percent : (one) => `${figure(one)}×`;
  return [...limits.map((one) => `< ${show(one)}`), `≥ ${show(limits[4])}`];
}
