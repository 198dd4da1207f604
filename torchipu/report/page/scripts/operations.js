// Operations: by op, by the user's line, by module, block or kind; cycles, arithmetic, bytes.

const GROUPINGS = {
  operation: (one) => one.number, line: (one) => (one.file ? `${one.file}:${one.line}` : "(no line)"), module: (one) =>
    one.module || "(no module)",
  block: (one) => one.block || "(no block)", kind: (one) => one.kind,
};
const SUMS = ["cycles", "compute", "exchange", "sync", "flops", "exchanged_bytes", "runs", "code_bytes"];
const CHOOSABLE = ["Leg", "Module", "Line", "Share", "Compute", "Exchange", "Sync", "FLOPs", "Exchanged bytes", "Runs",
  "Code bytes", "Memory"];

page("operations", (wanted) => {
  const chosen = {by: wanted.by || "operation", leg: "all", text: wanted.name || wanted.text || "", hidden: new Set()},
    place = make("div", {id: "operation-table"});
  const arrange = () => put(place, operationTable(chosen));
  const filter = make("input", {type: "search", value: chosen.text, id: "operation-filter",
    input: () => { chosen.text = filter.value; arrange(); }});
  const columns = make("details", {class: "stack"}, make("summary", {}, "Columns"), controls(CHOOSABLE.map((title) =>
    tick(title, true, (ticked) => { chosen.hidden[ticked ? "delete" : "add"](title); arrange(); }))));
  arrange();
  return [
    controls(choice("By", [["operation", "operation"], ["line", "line of code"], "module", "block", "kind"], chosen.by,
      (value) => { chosen.by = value; arrange(); }),
      choice("Leg", ["all", "forward", "backward", "update"], chosen.leg,
        (value) => { chosen.leg = value; arrange(); }), make("label", {}, "Filter", filter)),
    columns, place,
  ];
});

/** The bytes on tiles of the variables that an op makes. */
function memoryOf(one) {
  return sum((rowsBy("variables", "operation").get(one.number) || []).filter((held) => !held.off_chip), (held) =>
    held.bytes);
}

function operationTable({by, leg, text, hidden}) {
  const words = text.toLowerCase();
  const wanted = rows("operations").filter((one) => (leg === "all" || one.leg === leg) &&
    (!words || [one.name, one.kind, one.module, one.file, one.code, one.block, one.target].some((value) =>
      value.toLowerCase().includes(words))));
  const total = sum(rows("operations"), (one) => one.cycles) || 1;
  const groups = [...groupBy(wanted, GROUPINGS[by])].map(([name, list]) => ({
    ...Object.fromEntries(SUMS.map((column) => [column, sum(list, (one) => one[column])])), name: String(name), list,
      first: list[0], memory: sum(list, memoryOf),
    confidence: list.some((one) => one.confidence === "estimate") ? "estimate" : "modelled",
  }));
  const what = by === "operation" ? [{title: "Operation", value: (one) => one.first.kind, show: (one) =>
    [`${one.first.kind} `, code(`%${one.first.name}`)]},
    {title: "Leg", value: (one) => one.first.leg + (one.first.is_recomputed ? " again" : "")}]
    : [{title: by === "line" ? "Line" : by[0].toUpperCase() + by.slice(1), value: (one) => one.name},
      {title: "Ops", value: (one) => one.list.length, amount: true, confidence: "exact"}];
  const where = by === "operation" ? WHERE.map((column) => ({...column, value: (one) => column.value(one.first),
    show: (one) => (column.show ? column.show(one.first) : one.first.module)}))
    : by === "line" ? [{title: "Code", value: (one) => one.first.code, show: (one) => code(one.first.code)}] : [];
  const columns = [
    ...what, ...where, amount("Cycles", "cycles", "cycles"),
    {title: "Share", value: (one) => one.cycles, show: (one) => shareBar(one.cycles / total)},
    amount("Compute", "compute", "cycles"), amount("Exchange", "exchange", "cycles"), amount("Sync", "sync", "cycles"),
    amount("FLOPs", "flops", "FLOP", "exact"), amount("Exchanged bytes", "exchanged_bytes", "B"),
    amount("Runs", "runs", "", "exact"), amount("Code bytes", "code_bytes", "B"), amount("Memory", "memory", "B"),
  ].filter((column, at) => !at || !hidden.has(column.title));
  return sortable(`${exact(groups.length)} of ${exact(rows("operations").length)} operations, by ${by}`, columns,
    groups, {sort: columns.findIndex((column) => column.title === "Cycles"),
      ...(by === "operation" ? {operation: (one) => one.first.number} : {chosen: openGroup})});
}

function openGroup(group) {
  openDetails(group.name, sortable("Its operations", [
    ...OPERATION, amount("Cycles", "cycles", "cycles"),
  ], group.list, {sort: 3, operation: (one) => one.number}));
}
