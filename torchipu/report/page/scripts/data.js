// The data of the report: tables as columns, as `torchipu/report/facts/rows.py` describes them.

// Two may be shown beside each other: `report` is the one whose page is drawn, or whose elements are used.
let report = null;
const known = new WeakMap();

/** Read the data from text: compressed JSON in base 64. */
async function decoded(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** Turn columns into rows with a field for each. */
function rowsOf(columns) {
  const names = Object.keys(columns || {});
  if (!names.length) return [];
  const values = names.map((name) => {
    const column = columns[name];
    return Array.isArray(column) ? column : column.at.map((at) => column.words[at]);
  });
  return values[0].map((_, row) => Object.fromEntries(names.map((name, column) => [name, values[column][row]])));
}

/** The rows of a table, none where the report lacks it. */
function rows(name) { return kept(name, () => rowsOf(report.tables[name])); }

/** What is worked out once for a report. */
function kept(key, make) {
  if (!known.has(report)) known.set(report, new Map());
  const held = known.get(report);
  if (!held.has(key)) held.set(key, make());
  return held.get(key);
}

/** Do something with a report in the place of the one that is in use. */
function within(one, act) {
  const before = report;
  report = one;
  try { return act(); } finally { report = before; }
}

/** A function that is called later, with the report that is in use now. */
function bound(act) {
  const mine = report;
  return (...words) => within(mine || report, () => act(...words));
}

/** A figure of the whole run, with its unit and confidence. */
function fact(name) {
  const found = rows("facts").find((one) => one.name === name);
  return found ? {...found, value: parsed(found.value)} : {name, value: null, unit: "", confidence: "exact"};
}

/** A value as it was written; infinities and NaN, which JSON lacks, are numbers too. */
function parsed(text) { return /^-?(NaN|Infinity)$/.test(text) ? Number(text) : JSON.parse(text); }

/** Rows of a table by a column: a Map of lists. */
function rowsBy(name, column) {
  return kept(`${name}.${column}`, () => groupBy(rows(name), (row) => row[column]));
}

function groupBy(list, key) {
  const groups = new Map();
  for (const one of list) {
    const name = key(one);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(one);
  }
  return groups;
}

function sum(list, value = (one) => one) { return list.reduce((total, one) => total + value(one), 0); }
function most(list, value = (one) => one) { return list.reduce((best, one) => Math.max(best, value(one)), 0); }
/** The largest of a list, of equal ones the first ones. */
function largestOf(list, value, count) { return [...list].sort((a, b) => value(b) - value(a)).slice(0, count); }
function ipus() { return Object.keys(report.tiles).map(Number); }

/** The first index whose value in an ascending list is more than a number. */
function after(list, value) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] > value) high = middle; else low = middle + 1;
  }
  return low;
}

/** Where the user wrote an op. */
function lineOf(operation) { return operation.file ? `${operation.file.split(/[\\/]/).pop()}:${operation.line}` : ""; }
