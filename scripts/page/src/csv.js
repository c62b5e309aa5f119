// Tables as CSV: to the clipboard and as a file.

/** A cell that no spreadsheet runs as a formula. */
export function cell(value) {
  let text = value === null || value === undefined ? '' : String(value);
  if (typeof value === 'string' && /^'*[=+\-@%\t\r]/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Lines of a header and rows. */
export function toCsv(header, rows) {
  return [header, ...rows].map((row) => row.map(cell).join(',')).join('\r\n');
}

/** Offers a text as a file. */
export function download(name, text, type = 'text/csv') {
  const url = URL.createObjectURL(new Blob(['\ufeff', text], { type: `${type};charset=utf-8` }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Puts a text on the clipboard; whether it is there. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement('textarea');
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand('copy');
    field.remove();
    return done;
  }
}
