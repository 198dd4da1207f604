// Tables that sort and filter. A row that is about an op opens it.

const FIRST_ROWS = 25;

/**
 * Make a table.
 *
 * A column has a `title`, a `value` of a row, by which it sorts, and may have `show`, what stands in the cell, and
 * `unit` or `amount: true` for numbers, whose confidence is that of the row or the column.
 */
function sortable(caption, columns, list, {sort = -1, descending = true, operation = null, chosen = null,
  first = FIRST_ROWS} = {}) {
  let shown = first, order = list;
  const head = columns.map((column, at) => make("th", {scope: "col", class: isAmount(column) ? "amount" : ""},
    button(column.title, () => sortBy(at))));
  const body = make("tbody");
  const more = button("", () => { shown = order.length; fill(); });
  const table = make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, head)), body);
  const region = make("div", {class: "scroll", tabindex: 0, role: "region",
    "aria-label": labelled(caption)}, table);

  function sortBy(at) {
    descending = at === sort ? !descending : isAmount(columns[at]);
    sort = at;
    arrange();
  }
  function arrange() {
    head.forEach((cell) => cell.removeAttribute("aria-sort"));
    if (sort >= 0) {
      head[sort].setAttribute("aria-sort", descending ? "descending" : "ascending");
      const sign = descending ? -1 : 1, value = columns[sort].value;
      order = [...list].sort((a, b) => sign * compared(value(a), value(b)));
    }
    fill();
  }
  function fill() {
    body.replaceChildren(...order.slice(0, shown).map((row) => line(columns, row, operation, chosen)));
    more.hidden = order.length <= shown;
    more.textContent = `Show all ${order.length.toLocaleString("en-GB")}`;
  }
  arrange();
  return make("div", {}, region, more);
}

function line(columns, row, operation, chosen) {
  const about = operation ? operation(row) : -1;
  const open = about >= 0 ? () => openOperation(about) : chosen ? () => chosen(row) : null;
  const cells = columns.map((column, at) => {
    const opened = open && at === 0;
    let content = cell(column, row);
    if (opened) content = button(content, null, {class: "link"});  // the click reaches the row
    return make("td", {class: isAmount(column) ? "amount" : ""}, content);
  });
  return make("tr", open ? {class: "opens", click: open} : {}, cells);
}

function cell(column, row) {
  const value = column.value(row);
  if (column.lacks && column.lacks(row)) return "–";
  if (column.show) return column.show(row, value);
  if (!isAmount(column)) return String(value);
  return number(value, {unit: isUsual(column.unit) ? "" : column.unit,
    confidence: column.confidence || row.confidence || "modelled"});
}

function isAmount(column) { return column.amount || column.unit !== undefined; }
function compared(a, b) { return typeof a === "number" && typeof b === "number" ? a - b
  : String(a).localeCompare(String(b)); }

/** A bar of a share beside its text. */
function shareBar(share) {
  return make("span", {class: "number"},
    make("span", {class: "share", style: {width: `${Math.max(1, 60 * Math.min(1, share))}px`}}), " ", percent(share));
}

/** Columns of a field of rows. */
function text(title, name) { return {title, value: (one) => one[name]}; }
function amount(title, name, unit, confidence) { return {title, value: (one) => one[name], unit, confidence}; }

/** A column in which rows without a number have a dash. */
function unless(lacks, column) { return {...column, lacks}; }

/** How an op is called, as text and as a way to all that is known of it. */
function nameOf(one) { return `${one.kind} %${one.name}`; }
function opener(one) {
  return button(nameOf(one), (event) => { event.stopPropagation(); openOperation(one.number); }, {class: "link"});
}

/** What is told of the op of something else. */
function about(one) { return one ? [["Operation", opener(one)], ["Line", sourceOf(one)], ["Module", one.module]] : []; }

/** Columns that say where an op is in the user's program. */
const WHERE = [
  text("Module", "module"),
  {title: "Line", value: (one) => lineOf(one), show: (one) => sourceOf(one)},
];

function sourceOf(one) {
  return one.file ? [make("span", {title: `${one.file}:${one.line}`}, lineOf(one)), " ", make("span", {class: "code"},
    one.code || "")] : "";
}

const OPERATION = [{title: "Operation", value: nameOf}, ...WHERE];
