// The data of the report: tables as columns, as `torchipu/report/facts/rows.py` describes them.

let report = null;
const tables = new Map();

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
function rows(name) {
  if (!tables.has(name)) tables.set(name, rowsOf(report.tables[name]));
  return tables.get(name);
}

/** A figure of the whole run, with its unit and confidence. */
function fact(name) {
  const found = rows("facts").find((one) => one.name === name);
  return found ? {...found, value: parsed(found.value)} : {name, value: null, unit: "", confidence: "exact"};
}

/** A value as it was written; infinities and NaN, which JSON lacks, are numbers too. */
function parsed(text) { return /^-?(NaN|Infinity)$/.test(text) ? Number(text) : JSON.parse(text); }

const grouped = new Map();

/** Rows of a table by a column: a Map of lists. */
function rowsBy(name, column) {
  const key = `${name}.${column}`;
  if (!grouped.has(key)) grouped.set(key, groupBy(rows(name), (row) => row[column]));
  return grouped.get(key);
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
