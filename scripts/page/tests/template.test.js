// `node --test scripts/page/tests`: the same cases as of the catalogue's renderer in Python.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { fill } from '../src/template.js';

const cases = JSON.parse(readFileSync(new URL('templates.json', import.meta.url)));

for (const { template, fields, text } of cases) {
  test(template, () => assert.equal(fill(template, fields), text));
}

test('a brace is missing', () => assert.throws(() => fill('{name', { name: 1 }), /brace/));
