// The texts of the page in the language in use, and numbers as they are shown.
import { page as en } from '../../../precision_tool/lib/messages/en.json';
import { page as zh } from '../../../precision_tool/lib/messages/zh.json';
import { count, decade, figure, fill } from './template.js';

const TEXTS = { en, zh };
const KEYS = new Set(Object.keys(en));
// As `first.js` chose before the first paint.
let language = document.documentElement.lang.startsWith('zh') ? 'zh' : 'en';

export { count, decade, figure };
export const languages = Object.keys(TEXTS);
export const currentLanguage = () => language;

export function setLanguage(name) {
  language = name;
  document.documentElement.lang = name === 'zh' ? 'zh-CN' : 'en';
  try {
    localStorage.setItem('precision_tool.language', name);
  } catch {
    // a page that may keep nothing
  }
}

/** Whether there is a text of this key. */
export const has = (key) => KEYS.has(key);

/** The text of a key of the page's own section of the catalogue. */
export const t = (key, fields = {}) => (has(key) ? fill(TEXTS[language][key], fields) : key);

/** The text of a key, or another one where there is none. */
export const textOr = (key, other) => (has(key) ? t(key) : other);

/** The type of an op; of one that stands for a tensor of recorded calls what that is. */
export const typeOf = (ops, op) => (ops.placeholder[op] ? textOr(`placeholder.${ops.type[op]}`, ops.type[op]) : ops.type[op]);

/** Why something was not compared; of recorded calls other things are behind it. */
export const statusOf = (result, status) => textOr(`status.recorded.${result.is_recorded ? status : ''}`, textOr(`status.${status}`, status));

/** A text of the data: names as they are, messages of the tool in the language in use. */
export const local = (text) => (typeof text === 'string' ? text : text?.[language] ?? '');

/** A value of a tensor of integers with all its digits, as far as a number here has them; more come as text. */
export const exact = (value, digits) => (Number.isSafeInteger(value) ? count(value) : figure(value, digits));

/** How a value of a tensor of this type is shown. */
export const shownAs = (type) => (/^u?int\d/.test(type ?? '') ? exact : figure);

/** A cosine, with digits enough to tell it from 1. */
export function cosine(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return figure(value);
  return value.toFixed(6);
}

/** Room in a type, in bits. */
export const bits = (value) => t('bits', { bits: Number(value.toPrecision(3)) });

/** What tells of a tensor how far it is off: its cosine, or where that agrees, as of a single number, its relative distance. */
export function farOff(result, row) {
  const { cosine: cosines, agree, relative_distance: distances } = result.tensors;
  const isNumber = agree[row] === false && cosines[row] >= result.threshold && distances[row] !== null;
  return isNumber ? `${t('column.relative_distance')} ${percent(distances[row])}` : `${t('cosine')} ${cosine(cosines[row])}`;
}

/** A relative distance in percent. */
export function percent(value) {
  if (value === null || value === undefined) return '–';
  if (typeof value !== 'number' || !Number.isFinite(value)) return 'Inf';
  const hundredth = 100 * value;
  const digits = hundredth.toPrecision(hundredth < 10 ? 2 : 3);
  return `${hundredth < 1000 ? Number(digits) : hundredth < 1e6 ? count(Number(digits)) : digits}\u00a0%`;
}
