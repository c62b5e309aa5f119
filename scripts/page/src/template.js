// The texts of the catalogue of messages (precision_tool/lib/messages): the placeholders that the page's own texts use.

const COUNTS = new Intl.NumberFormat('en-US');

/** Whole numbers get separators of thousands, others at most `digits` significant digits. */
export function figure(value, digits = 6) {
  if (value === null || value === undefined) return '–';
  if (typeof value !== 'number') return String(value);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf';
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return COUNTS.format(value);
  return String(Number(value.toPrecision(digits)));
}

/** A whole number with separators of thousands. */
export const count = (value) => (typeof value === 'number' ? COUNTS.format(value) : '–');

/** A tick of a logarithmic axis: powers of ten all look alike, but for those near 1. */
export const decade = (value) => (value < 1e-3 ? value.toExponential() : figure(value, 3));

const noun = (number, nouns) => {
  const [single, several] = nouns.split('|');
  return number === 1 ? single : several ?? `${single}s`;
};

function field(value, form) {
  const [word, ...rest] = form.split(' ');
  if (word === 'count') return `${count(value)} ${noun(value, rest.join(' '))}`;
  if (word === 'plural') return noun(value, rest.join(' '));
  return Number.isInteger(value) ? count(value) : figure(value);
}

const isSet = (value) => ![undefined, null, false, ''].includes(value) && !(Array.isArray(value) && !value.length);

/** The end of a condition that begins at `start`: the place of its closing brace. */
function closing(template, start) {
  let depth = 0;
  for (let at = start; at < template.length; at += 1) {
    if (template[at] === '{') depth += 1;
    else if (template[at] === '}' && (depth -= 1) === 0) return at;
  }
  throw new Error(`a brace is missing in ${template}`);
}

/**
 * A template with its fields: `{name}`, `{n:count op}`, `{n:count box|boxes}`, `{n:plural is|are}`, `{?name …}`,
 * `{!name …}`, `{{` and `}}`.
 */
export function fill(template, fields) {
  let text = '';
  for (let at = 0; at < template.length; at += 1) {
    const char = template[at];
    if ('{}'.includes(char) && template[at + 1] === char) {
      text += char;
      at += 1;
    } else if (char === '{') {
      const end = closing(template, at);
      const condition = /^([?!])(\w+) (.*)$/s.exec(template.slice(at + 1, end));
      if (condition) {
        const [, mark, name, inner] = condition;
        if (isSet(fields[name]) === (mark === '?')) text += fill(inner, fields);
      } else {
        const [, name, form] = /^(\w+):?(.*)$/s.exec(template.slice(at + 1, end));
        text += field(fields[name], form);
      }
      at = end;
    } else {
      text += char;
    }
  }
  return text;
}
