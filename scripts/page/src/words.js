// The words of the page: a table for each language, and numbers as they are shown.
import en from './texts/en.json';
import zh from './texts/zh.json';

const TABLES = { en, zh };
// As `first.js` chose before the first paint.
let language = document.documentElement.lang.startsWith('zh') ? 'zh' : 'en';

export const languages = Object.keys(TABLES);
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
export const has = (key) => key in TABLES[language];

/** The text of a key with values in place of `{name}`. */
export function t(key, values = {}) {
  const text = TABLES[language][key] ?? TABLES.en[key] ?? key;
  return text.replace(/\{(\w+)(?::(\w+))?\}/g, (whole, name, form) => shown(values[name], form));
}

/** Forms of sentences that the tool writes, with what they are in a language: `op(s)` stands for both numbers. */
const forms = (table) => Object.entries(table).filter(([key]) => /^(step|told)\./.test(key)).map(([key, text]) => {
  const parts = key.slice(key.indexOf('.') + 1).split(/\{(\w+)\}/);
  const literal = (part) => part.replace(/[.*+?^$|()[\]{}\\]/g, '\\$&').replace(/\\\(s\\\)/g, 's?');
  const source = parts.map((part, at) => (at % 2 ? `(?<${part}>.+)` : literal(part))).join('');
  return { form: new RegExp(`^${source}$`, 's'), text, length: key.length };
}).sort((a, b) => b.length - a.length);
const FORMS = Object.fromEntries(Object.entries(TABLES).map(([name, table]) => [name, forms(table)]));

/** What sentences were found to be: a table asks for the same ones with every row that it draws. */
const KNOWN = Object.fromEntries(Object.keys(TABLES).map((name) => [name, new Map()]));

/** A sentence of the tool in the language of the page, where that has one of this form; else as it is. */
export function told(sentence) {
  const known = KNOWN[language];
  if (!known.has(sentence)) known.set(sentence, translated(sentence));
  return known.get(sentence);
}

function translated(sentence) {
  for (const { form, text } of FORMS[language]) {
    const found = form.exec(sentence);
    if (found) return text.replace(/\{(\w+)\}/g, (_, name) => found.groups[name]);
  }
  return sentence;
}

function shown(value, form) {
  if (form === 'percent') return percent(value);
  if (form === 'count') return count(value);
  if (typeof value === 'number') return figure(value);
  return value === null || value === undefined ? '–' : String(value);
}

const COUNTS = new Intl.NumberFormat('en-US');

/** A whole number with commas. */
export const count = (value) => (typeof value === 'number' ? COUNTS.format(value) : '–');

/** A number with a few digits. */
export function figure(value, digits = 6) {
  if (value === null || value === undefined) return '–';
  if (typeof value !== 'number') return String(value);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf';
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return COUNTS.format(value);
  return String(Number(value.toPrecision(digits)));
}

/** A value of a tensor of integers with all its digits, as far as a number here has them; more come as text. */
export const exact = (value, digits) => (Number.isSafeInteger(value) ? count(value) : figure(value, digits));

/** How a value of a tensor of this type is shown. */
export const shownAs = (type) => (/^u?int\d/.test(type ?? '') ? exact : figure);

/** A cosine, with digits enough to tell it from 1. */
export function cosine(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return figure(value);
  return value.toFixed(6);
}

/** A relative distance in percent. */
export function percent(value) {
  if (typeof value !== 'number' || !Number.isFinite(value)) {
    return value === null || value === undefined ? '–' : t('all');
  }
  const hundredth = 100 * value;
  if (hundredth >= 1000) return t('times', { value: Number(value.toPrecision(3)) });
  return `${Number(hundredth.toPrecision(hundredth < 10 ? 2 : 3))}\u00a0%`;
}
