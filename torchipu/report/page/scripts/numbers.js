// Numbers as they are shown: exact where they stand in a row, short where they are read at a glance.

const BIG = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** All digits, in groups; a fraction with three places. */
function exact(value) {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  if (value && Math.abs(value) < 0.01) return value.toExponential(2);
  return value.toLocaleString("en-GB", {maximumFractionDigits: Number.isInteger(value) ? 0 : 3});
}

/** Three digits and a prefix. */
function brief(value) {
  const found = BIG.find(([size]) => Math.abs(value) >= size);
  if (!found || Number.isInteger(value) && Math.abs(value) < 1e4) return exact(value);
  return `${(value / found[0]).toPrecision(3)} ${found[1]}`;
}

function percent(share) { return Number.isFinite(share) ? `${(100 * share).toFixed(1)} %` : "–"; }

/** Units that can be chosen in the place of cycles and bytes, with how many of the latter they are. */
const UNITS = {
  cycles: {cycles: () => 1, "µs": () => fact("clock_hz").value / 1e6, ms: () => fact("clock_hz").value / 1e3},
  B: {B: () => 1, KiB: () => 1024, MiB: () => 1024 ** 2},
};
const inUse = {cycles: "cycles", B: "B"};

/** A number with its unit, in the one that was chosen. */
function converted(value, unit) {
  const chosen = inUse[unit];
  return !chosen || chosen === unit || typeof value !== "number" ? [value, unit]
    : [value / UNITS[unit][chosen](), chosen];
}

/** Cycles, bytes and others as text. */
function plain(value, unit, show = exact) {
  const [amount, name] = converted(value, unit);
  return withUnit(show(amount), name);
}

/** Whether amounts of a unit stand in it, and in tables without its name. */
function isUsual(unit) { return !inUse[unit] || inUse[unit] === unit; }

/** The same at a glance, without the name of a unit that is as usual. */
function briefly(value, unit) { return isUsual(unit) ? brief(value) : plain(value, unit, brief); }

/** The name of a unit behind a number; those of bytes and cycles take prefixes. */
function withUnit(text, unit) {
  if (!unit) return text;
  return /[kMGTP]$/.test(text) && /^(B|FLOP)/.test(unit) ? text + unit : `${text} ${unit}`;
}

/** A number with its mark of confidence; one that is about an op opens it. */
function number(value, {unit = "", confidence = "modelled", show = exact, operation = -1} = {}) {
  const [amount, name] = show === percent ? [value, unit] : converted(value, unit);
  const words = show === brief && !/^(B|FLOP)/.test(name) ? [show(amount), make("small", {}, ` ${name}`)]
    : withUnit(show(amount), name), title = `${withUnit(exact(value), unit)}, ${confidence}`;
  const about = {class: "number", "data-value": value, "data-confidence": confidence, title};
  if (operation < 0) return make("span", about, words);
  return button(words, () => openOperation(operation), {...about, class: "number link"});
}

function bytes(value) { return number(value, {unit: "B"}); }

/** A change in percent. */
function signedPercent(share) {
  return Number.isFinite(share) ? `${signed(Math.round(1000 * share) / 10, (value) => value.toFixed(1))} %` : "new";
}

/** A change with its sign. */
function signed(value, show = exact) { return `${value > 0 ? "+" : value < 0 ? "−" : ""}${show(Math.abs(value))}`; }

/** A card with a figure and a note below it; its name goes to the page that tells more. */
function card(name, anchor, value, notes = "") {
  return make("div", {class: "card"}, make("dt", {}, make("a", {href: `#${anchor}`}, name)), make("dd", {}, value),
    make("dd", {class: "note"}, notes));
}

const CONFIDENCES = [
  ["●", "measured on this computer"], ["◐", "modelled"], ["○", "estimate: an op without a record of its own"],
  ["no mark:", "counted or given"],
];
