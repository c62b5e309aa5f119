// A table of many rows, of which only those in sight are in the page.
import { html, render } from 'lit-html';
import { copy, download, toCsv } from './csv.js';
import { count, t, textOr } from './words.js';

const ROW = 28;
const BEYOND = 12;

/** The heading of a column; of one that the page has no word for its name in the data. */
const headingOf = ({ key, name }) => textOr(`column.${key}`, name || key);

export class GridTable {
  /**
   * `columns`: {key, name, value(row), show(value, row), isNumber, wide}; `rows` are numbers; `chosen(row)` on a click.
   * `accepts(row)` is the filter from outside.
   */
  constructor(holder, { columns, rows, name, chosen, selected, isWorstFirst }) {
    Object.assign(this, { holder, columns, rows, name, chosen, selected, isWorstFirst });
    this.filters = {};
    this.sortBy = null;
    this.descending = false;
    this.active = -1;
    this.accepts = () => true;
    this.refilter();
    this.observer = new ResizeObserver(() => this.update());
    this.observer.observe(holder);
  }

  destroy() {
    this.observer.disconnect();
  }

  setFilter(accepts) {
    this.accepts = accepts;
    this.refilter();
    this.update();
  }

  refilter() {
    const tests = Object.entries(this.filters).filter(([, text]) => text.trim())
      .map(([key, text]) => test(this.columns.find((column) => column.key === key), text.trim()));
    this.shown = this.rows.filter((row) => this.accepts(row) && tests.every((one) => one(row)));
    this.sort();
  }

  sort() {
    const column = this.columns.find((one) => one.key === this.sortBy);
    if (!column) return;
    const sign = this.descending ? -1 : 1;
    const keys = new Map(this.shown.map((row) => [row, column.value(row)]));
    const position = new Map(this.shown.map((row, at) => [row, at]));
    this.shown.sort((a, b) => order(keys.get(a), keys.get(b), sign) || position.get(a) - position.get(b));
  }

  sortOn(key) {
    if (this.sortBy === key && this.descending) {
      this.sortBy = null;
      this.refilter();
    } else {
      this.descending = this.sortBy === key;
      this.sortBy = key;
      this.sort();
    }
    this.update();
  }

  filterOn(key, text) {
    this.filters[key] = text;
    this.refilter();
    const body = this.holder.querySelector('.grid-body');
    if (body) body.scrollTop = 0;
    this.update();
  }

  header() {
    return this.columns.map(headingOf);
  }

  csv(rows) {
    return toCsv(this.columns.map((column) => column.key), rows.map((row) => this.columns.map((column) => {
      const value = column.value(row);
      return Array.isArray(value) ? value.join(' ') : value;
    })));
  }

  keyDown(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity }[event.key];
    if (step !== undefined) {
      this.active = Math.max(0, Math.min(this.shown.length - 1, this.active + step));
      const body = this.holder.querySelector('.grid-body');
      const top = this.active * ROW;
      if (top < body.scrollTop) body.scrollTop = top;
      else if (top + ROW * 2 > body.scrollTop + body.clientHeight) body.scrollTop = top + 2 * ROW - body.clientHeight;
    } else if (event.key === 'Enter' && this.active >= 0) {
      this.chosen(this.shown[this.active]);
    } else if (event.key === 'c' && (event.ctrlKey || event.metaKey) && this.active >= 0) {
      if (String(window.getSelection())) return;
      copy(this.csv([this.shown[this.active]]));
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    this.update();
  }

  update() {
    const body = this.holder.querySelector('.grid-body');
    const top = body ? body.scrollTop : 0;
    const height = body ? body.clientHeight || 600 : 600;
    const first = Math.max(0, Math.floor(top / ROW) - BEYOND);
    const last = Math.min(this.shown.length, Math.ceil((top + height) / ROW) + BEYOND);
    const template = `${this.columns.map((column) => `${column.wide ?? (column.isNumber ? 104 : 132)}px`).join(' ')}`;
    render(html`
      <div class="grid-tools">
        <span class="grid-count" role="status">${t('table.rows', { shown: count(this.shown.length),
          all: count(this.rows.length) })}${this.isWorstFirst && !this.sortBy ? `${t('comma')}${t('table.worst')}` : ''}</span>
        <button @click=${() => copy(this.csv(this.shown))}>${t('table.copy')}</button>
        <button class="grid-download" @click=${() => download(`${this.name}.csv`, this.csv(this.shown))}>${
          t('table.download')}</button>
      </div>
      <div class="grid-body" tabindex="0" role="grid" aria-label=${t(`tab.${this.name}`)}
          aria-rowcount=${this.shown.length + 1} @scroll=${() => this.scrolled()}
          @keydown=${(event) => this.keyDown(event)}>
        <div class="grid-head" role="row" aria-rowindex="1">${this.columns.map((column) => this.head(column))}</div>
        <div class="grid-rows" role="rowgroup">
          ${this.shown.slice(first, last).map((row, at) => this.line(row, first + at))}
        </div>
      </div>`, this.holder);
    const grid = this.holder.querySelector('.grid-body');
    grid.style.setProperty('--columns', template);
    const rows = grid.querySelector('.grid-rows');
    rows.style.height = `${this.shown.length * ROW}px`;
    [...rows.children].forEach((line, at) => {
      line.style.transform = `translateY(${(first + at) * ROW}px)`;
    });
  }

  scrolled() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.update();
    });
  }

  head(column) {
    const isSorted = this.sortBy === column.key;
    const name = headingOf(column);
    return html`<div role="columnheader" aria-sort=${
      isSorted ? (this.descending ? 'descending' : 'ascending') : 'none'}>
      <button class="grid-sort" data-key=${column.key} title=${name} @click=${() => this.sortOn(column.key)}>${
        name}${isSorted ? (this.descending ? ' ▼' : ' ▲') : ''}</button>
      <input class="grid-filter" data-key=${column.key} .value=${this.filters[column.key] ?? ''}
        placeholder=${column.isNumber ? column.example ?? (column.key.startsWith('cosine') ? '<0.99' : '>0.01') : t('table.filter')} aria-label=${t('table.filter_of', { name })}
        @input=${(event) => this.filterOn(column.key, event.target.value)}
        @keydown=${(event) => event.stopPropagation()}></div>`;
  }

  line(row, at) {
    const classes = `grid-row${at === this.active ? ' is-active' : ''}${this.selected(row) ? ' is-selected' : ''}`;
    return html`<div class=${classes} role="row" aria-rowindex=${at + 2} @click=${() => {
      this.active = at;
      this.chosen(row);
      this.update();
    }}>${this.columns.map((column) => {
      const value = column.value(row);
      const text = column.show ? column.show(value, row) : value ?? '–';
      const mark = column.mark ? column.mark(row) : '';
      return html`<div role="gridcell" class="${column.isNumber ? 'is-number ' : ''}${mark}" title=${
        String(text)}><bdi>${text}</bdi></div>`;
    })}</div>`;
  }
}

/** Whichever way: NaN comes first, as it is what one looks for, and what is empty last. */
function order(a, b, sign) {
  const [noA, noB] = [a === null || a === undefined || a === '', b === null || b === undefined || b === ''];
  if (noA || noB) return noA - noB;
  if (typeof a === 'number' && typeof b === 'number') {
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(b) - Number.isNaN(a);
    return a < b ? -sign : a > b ? sign : 0;
  }
  const [x, y] = [String(a), String(b)];
  return x < y ? -sign : x > y ? sign : 0;
}

/** A filter: a part of a text; of numbers also `<0.99`, `>=3` and `nan`. */
function test(column, text) {
  const compared = /^(<=|>=|<|>|=)?\s*([-+]?[\d.]+(?:e[-+]?\d+)?)$/i.exec(text);
  if (column.isNumber && compared && Number.isFinite(Number(compared[2]))) {
    const limit = Number(compared[2]);
    const accepts = {
      '<': (one) => one < limit, '<=': (one) => one <= limit, '>': (one) => one > limit, '>=': (one) => one >= limit,
      '=': (one) => one === limit,
    }[compared[1] ?? '='];
    return (row) => {
      const value = column.value(row);
      return typeof value === 'number' && accepts(value);
    };
  }
  const wanted = text.toLowerCase();
  return (row) => {
    const value = column.value(row);
    const shown = column.isNumber && typeof value === 'number' && !Number.isFinite(value)
      ? (Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf') : String(value ?? '');
    return shown.toLowerCase().includes(wanted);
  };
}
