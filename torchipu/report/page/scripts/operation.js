// The dialog of an op: the user's line, its module, all its numbers, and ways to the pages that show it.

/** Open the dialog of an op by its number. */
function openOperation(at) {
  const one = rows("operations")[at];
  const total = sum(rows("operations"), (other) => other.cycles) || 1;
  const amount = (value, unit) => number(value, {unit, confidence: one.confidence});
  const variables = rowsBy("variables", "operation").get(at) || [];
  const steps = rowsBy("steps", "operation").get(at) || [];
  openDetails(nameOf(one),
    one.file ? [make("pre", {}, one.code), make("p", {}, make("code", {class: "source"}, `${one.file}:${one.line}`)),
      stackOf(one)]
      : note("The line that wrote it is not known: it is made by the compiler or the optimiser."),
    facts([
      ["Module", one.module && code(one.module)], ["Block", one.block],
        ["Runs on", `ipu${one.ipu}, stage ${one.stage}`],
      ["Leg", one.leg + (one.is_recomputed ? ", computed again by the backward" : "")],
        ["ATen overload", code(one.target)],
      ["Result", code(one.result)], ["Runs", exact(one.runs)],
        ["Cycles", [amount(one.cycles), ` ${percent(one.cycles / total)} of all ops`]],
      ["of which compute", amount(one.compute)], ["exchange", amount(one.exchange)], ["sync", amount(one.sync)],
      ["Arithmetic", number(one.flops, {unit: "FLOP", confidence: "exact"})],
        ["Exchanged", amount(one.exchanged_bytes, "B")],
      ["Code on a tile", amount(one.code_bytes, "B")],
    ]),
    operationCharts(one, steps, variables),
    controls(
      jump("In Operations", "operations", {name: one.name}), steps.length ? jump("In Execution", "execution",
        {operation: at}) : "",
      jump("In Liveness", "liveness", {operation: at})),
    variables.length ? sortable("Variables that it makes", VARIABLE_COLUMNS.slice(0, 5), variables, {sort: 3}) : "",
    steps.length ? sortable("Its steps in one run", STEP_COLUMNS, steps) : "");
}

/** Where the cycles of an op go, and what its steps and variables take of each tile. */
function operationCharts(one, steps, variables) {
  const cycles = tileNumbers(), memory = tileNumbers();
  for (const step of steps) for (const part of patternOf(step)) addTo(cycles, part.first_tile, part.end_tile,
    part.value * step.runs);
  for (const each of variables.filter((held) => !held.off_chip)) addBytes(memory, each);
  const kinds = ["compute", "exchange", "sync"].filter((name) => one[name]);
  const bars = kinds.map((name) => ({name, parts: [[name, one[name], colourVariable(name)]],
    note: percent(one[name] / one.cycles)}));
  return make("div", {id: "operation-charts"},
    bars.length ? [heading("Where its cycles go"), stackedBars(`Cycles of ${nameOf(one)} by what they are for`, bars,
      one.cycles)] : "",
    most(cycles) ? [heading("Cycles by tile, in one run"), tileColumns(`Cycles of ${nameOf(one)} by tile`,
      [{name: "cycles", fill: "blue", numbers: cycles}], {unit: "cycles", height: 90})] : "",
    most(memory) ? [heading("Bytes by tile, of the variables that it makes"), tileColumns(
      `Bytes of ${nameOf(one)} by tile`, [{name: "bytes", fill: "orange", numbers: memory}], {height: 90})] : "");
}

const VARIABLE_COLUMNS = [
  {title: "Variable", value: (one) => one.name, show: (one) => code(one.name)},
  {title: "Type", value: (one) => `${one.dtype}[${one.shape}]`}, {title: "Role", value: (one) => one.role.replace("_",
    " ")},
  amount("Bytes", "bytes", "B"),
  {title: "Steps held", value: (one) => (one.always ? "always" : `${one.begin} to ${one.end}`)},
];
const STEP_COLUMNS = [
  text("Function", "function"), {title: "Step", value: (one) => one.name, show: (one) => code(one.name)},
  text("Kind", "category"), {title: "Cycles", value: (one) => one.cycles * one.runs, unit: "cycles"},
  {title: "Vertices", value: (one) => one.vertices, amount: true, confidence: "exact"},
  {title: "Tile balance", value: (one) => one.tile_balance, amount: true, show: (one) =>
    (one.vertices ? number(one.tile_balance, {show: percent}) : "")},
  {title: "Codelets", value: (one) => one.codelets, show: (one) => code(one.codelets)},
];

/** The lines that led to an op, the innermost first, as a debugger shows them. */
function stackOf(one) {
  const callers = one && one.callers ? JSON.parse(one.callers) : [];
  if (!callers.length) return "";
  const lines = [...callers, [one.file, one.line, one.code]].reverse();
  return make("details", {class: "stack"}, make("summary", {}, `Call stack of ${lines.length} lines`),
    make("ol", {}, lines.map(([file, line, words]) =>
      make("li", {}, code(`${file}:${line}`), " ", make("span", {class: "code"}, words)))));
}

/** Open the dialog with a title and content. */
function openDetails(title, ...content) {
  const dialog = document.getElementById("details");
  const close = button("Close", () => dialog.close());
  put(dialog, make("h2", {id: "details-title"}, title), content, close);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTo(0, 0);
  redrawAll();
}

/** A button that goes to a page, with something for it to show. */
function jump(text, anchor, wanted = {}) {
  return button(text, () => { document.getElementById("details").close(); go(anchor, wanted); });
}
