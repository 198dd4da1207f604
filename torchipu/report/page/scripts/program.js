// Program: the tree of programs that the device runs, from entry points and functions to compute sets and copies.

const MOST_PARTS = 200;

page("program", (wanted) => {
  const place = make("div", {id: "program-found"}), tree = make("div", {id: "program-tree"});
  const filter = make("input", {type: "search", id: "program-filter", value: wanted.text || "",
    input: () => seek(filter.value.trim().toLowerCase())});
  const seek = (words) => {
    put(place, words ? programsFound(words) : "");
    tree.hidden = Boolean(words);
  };
  put(tree, partsShown(rowsBy("programs", "parent").get(-1) || []));
  seek(filter.value.trim().toLowerCase());
  return [
    controls(make("label", {}, "Search", filter)),
    note("Entry points come first, then the functions that they call. What holds others opens to them; what does not "
      + "tells its variables, vertices and cycles."), place, tree,
  ];
});

/** Programs one below the other, the first ones where there are many. */
function partsShown(list, from = 0) {
  const place = make("ul", {class: "tree"}, list.slice(from, from + MOST_PARTS).map((one) => make("li", {},
    programNode(one))));
  if (list.length <= from + MOST_PARTS) return place;
  const more = button(`Show ${exact(Math.min(MOST_PARTS, list.length - from - MOST_PARTS))} more of ${
    exact(list.length)}`, () => more.replaceWith(partsShown(list, from + MOST_PARTS)));
  return make("div", {}, place, more);
}

function programNode(one) {
  const parts = rowsBy("programs", "parent").get(one.number) || [];
  const words = [code(one.type), ` ${one.name === one.type ? "" : one.name}`, one.repeats > 1
    ? ` × ${exact(one.repeats)}` : ""];
  if (!parts.length) return [button(words, () => openProgram(one.number), {class: "link"}), programCycles(one)];
  const inside = make("div"), whole = make("details", {toggle: () => {
    if (whole.open && !inside.firstChild) put(inside, partsShown(parts));
  }}, make("summary", {}, words, make("span", {class: "soft"}, ` ${exact(parts.length)} inside`), programCycles(one)),
  inside);
  return whole;
}

function stepOf(program) { return (rowsBy("steps", "program").get(program.number) || [])[0]; }

function programCycles(one) {
  const step = stepOf(one), whole = one.parent < 0 && rows("functions").find((each) => each.name === one.name);
  if (whole) return make("span", {class: "soft"}, `, ${plain(whole.cycles, "cycles")} in each of ${
    exact(whole.runs)} runs`);
  return step ? make("span", {class: "soft"}, ` ${plain(step.cycles * step.runs, "cycles")}`) : "";
}

/** The names of the programs around one, from the outside to the inside. */
function programsAround(one) {
  const names = [];
  for (let at = one.parent; at >= 0; at = rows("programs")[at].parent) names.unshift(rows("programs")[at].name);
  return names;
}

function programsFound(words) {
  const codeletsOf = (one) => [...new Set((rowsBy("vertices", "program").get(one.number) || []).map((each) =>
    each.codelet))].join(", ");
  const list = rows("programs").filter((one) => [one.name, one.type, one.function, codeletsOf(one)].some((each) =>
    each.toLowerCase().includes(words)));
  return sortable(`${exact(list.length)} of ${exact(rows("programs").length)} programs`, [
    {title: "Program", value: (one) => one.name}, {title: "Type", value: (one) => one.type, show: (one) =>
      code(one.type)},
    {title: "Codelets", value: codeletsOf, show: (one) => code(codeletsOf(one))},
    {title: "In", value: (one) => programsAround(one)[0] || ""}, {title: "IPU", value: (one) => (one.ipu < 0 ? ""
      : one.ipu)},
    unless((one) => !stepOf(one), {title: "Cycles", value: (one) => (stepOf(one) ? stepOf(one).cycles
      * stepOf(one).runs : 0), unit: "cycles"}),
  ], list, {chosen: (one) => openProgram(one.number)});
}

/** The dialog of a program by its number. */
function openProgram(at) {
  const one = rows("programs")[at], step = stepOf(one), operation = step && rows("operations")[step.operation];
  const variables = (rowsBy("program_variables", "program").get(at) || []).map((each) =>
    rows("variables")[each.variable]);
  const vertices = rowsBy("vertices", "program").get(at) || [];
  const called = one.function && (rowsBy("programs", "parent").get(-1) || []).filter((each) =>
    each.name === one.function).pop();
  openDetails(one.name, facts([
    ["Type", code(one.type)], ["In", programsAround(one).join(" › ")], ["IPU", one.ipu < 0 ? "" : one.ipu],
    ["Runs what it holds", one.repeats > 1 ? `${exact(one.repeats)} times` : ""],
    ["Calls", called ? button(one.function, () => openProgram(called.number), {class: "link"}) : one.function],
    ["Goes", /^StreamCopy/.test(one.type) ? (one.to_device ? "to the device" : "from the device") : ""],
    ["Cycles", step && number(step.cycles * step.runs, {unit: "cycles"})], ...about(operation),
  ]),
  vertices.length ? sortable("Vertices", [{title: "Codelet", value: (each) => each.codelet, show: (each) =>
    code(each.codelet)}, {title: "Vertices", value: (each) => each.vertices, amount: true, confidence: "exact"},
    {title: "Tiles", value: (each) => tilesOf(each.by_tile), amount: true, confidence: "exact"},
    amount("Cycles of the slowest", "cycles", "cycles")], vertices) : "",
  variables.length ? sortable("Variables that it reads or writes", VARIABLE_COLUMNS, variables, {sort: 3}) : "",
  programParts(at));
}

function programParts(at) {
  const parts = rowsBy("programs", "parent").get(at) || [];
  return parts.length ? [heading(`${exact(parts.length)} inside`), partsShown(parts)] : "";
}
