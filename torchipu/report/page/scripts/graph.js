// Graph: a column for each IPU, blocks in the order of the program; a block opens to its modules, these to their ops.

const NODE = {width: 230, height: 34, gap: 14, column: 270};

page("graph", () => {
  const state = {leg: "forward", open: new Set(), zoom: 1}, place = make("div", {class: "scroll", tabindex: 0,
    role: "region", "aria-label": labelled("Drawing of the graph"), id: "graph-picture"});
  const arrange = () => put(place, graphPicture(state, arrange));
  const zoom = (factor) => { state.zoom = Math.min(4, Math.max(0.2, state.zoom * factor)); arrange(); };
  state.place = place;
  arrange();
  return [
    controls(
      choice("Leg", ["forward", "backward", "update"].filter((leg) => rows("operations").some((one) =>
        one.leg === leg)), state.leg, (value) => { state.leg = value; arrange(); }),
      button("+", () => zoom(1.25), {"aria-label": "Zoom in"}), button("−", () => zoom(0.8),
        {"aria-label": "Zoom out"}),
      button("Close all", () => { state.open.clear(); arrange(); })),
    note("A box opens to what it is made of; an op opens the line that wrote it. Bars are shares of the leg's cycles; "
      + "lines are values, their width how many bytes."), place,
  ];
});

/** The names of what an op is in, from the outside to the inside. */
function pathOf(one) { return [`ipu${one.ipu} stage ${one.stage} ${one.block}`, one.module || "(no module)",
  String(one.number)]; }

/** What is seen of an op: the outermost box around it that is not open. */
function seenAs(one, open) {
  const path = pathOf(one);
  let key = path[0], depth = 0;
  while (depth < 2 && open.has(key)) { depth += 1; key = `${key}/${path[depth]}`; }
  return {key, depth};
}

function graphPicture(state, arrange) {
  const list = rows("operations").filter((one) => one.leg === state.leg), nodes = new Map(), nodeOf = new Map();
  for (const one of list) {
    const {key, depth} = seenAs(one, state.open);
    if (!nodes.has(key)) nodes.set(key, {key, depth, list: [], ipu: one.ipu,
      parent: key.slice(0, key.lastIndexOf("/"))});
    nodes.get(key).list.push(one);
    nodeOf.set(one.number, nodes.get(key));
  }
  const columns = [...new Set(list.map((one) => one.ipu))].sort((a, b) => a - b);
  [...nodes.values()].forEach((node, at) => { node.x = columns.indexOf(node.ipu) * NODE.column + 12; node.y = 30
    + at * (NODE.height + NODE.gap); });
  const width = columns.length * NODE.column + 12, height = 40 + nodes.size * (NODE.height + NODE.gap),
    total = sum(list, (one) => one.cycles) || 1;
  const heads = columns.map((ipu, at) => [shape("text", {x: at * NODE.column + 12, y: 16}, `ipu${ipu}`),
    at ? shape("path", {class: "lane", d: `M${at * NODE.column} 0V${height}`}) : ""]);
  const drawing = shape("svg", {viewBox: `0 0 ${width} ${height}`, role: "group",
    "aria-label": `Graph of the ${state.leg}`,
    style: {width: `${width * state.zoom}px`, maxWidth: "none"}}, heads, flowLines(nodes, nodeOf),
      [...nodes.values()].map((node) => nodeBox(node, total, state, arrange)));
  return drawing;
}

function flowLines(nodes, nodeOf) {
  const sums = new Map();
  for (const flow of rows("flows")) {
    const from = nodeOf.get(flow.source), to = nodeOf.get(flow.target);
    if (!from || !to || from === to) continue;
    const key = `${from.key}\n${to.key}`;
    if (!sums.has(key)) sums.set(key, {from, to, bytes: 0, tensors: new Set()});
    const line = sums.get(key);
    if (!line.tensors.has(flow.tensor)) { line.tensors.add(flow.tensor); line.bytes += flow.bytes; }
  }
  return [...sums.values()].map(({from, to, bytes, tensors}) => {
    const path = pathBetween(from, to);
    return shape("path", {class: "flow", d: path, "stroke-width": Math.min(7,
      0.8 + Math.log10(1 + bytes / 1000)).toFixed(1)},
      shape("title", {}, `${[...tensors].slice(0, 4).join(", ")}: ${plain(bytes, "B")}`));
  });
}

/** The line of a value: downwards to the next box, around the side to those further on or above. */
function pathBetween(from, to) {
  const {width, height, gap} = NODE, right = from.x + width, y0 = from.y + height / 2, y1 = to.y + height / 2;
  const isNext = to.y - from.y === height + gap, isBelow = to.y > from.y;
  if (isBelow && (isNext || from.x !== to.x)) {
    const x0 = from.x + width / 2, x1 = to.x + width / 2, top = from.y + height, middle = (top + to.y) / 2;
    return `M${x0} ${top}C${x0} ${middle} ${x1} ${middle} ${x1} ${to.y}`;
  }
  const bend = isBelow ? 26 : 40;
  return `M${right} ${y0}C${right + bend} ${y0} ${to.x + width + bend} ${y1} ${to.x + width} ${y1}`;
}

function nodeBox(node, total, state, arrange) {
  const one = node.list[0], isOp = node.depth === 2, cycles = sum(node.list, (op) => op.cycles), path = pathOf(one);
  const title = isOp ? nameOf(one) : node.depth === 1 ? path[1] : `${one.block || "(no block)"} · stage ${one.stage}`;
  const act = () => {
    if (isOp) return openOperation(one.number);
    state.open.add(node.key);
    arrange();
    // Where the box was, the first of what it holds takes the focus.
    [...state.place.querySelectorAll(".node")].find((box) => box.dataset.key.startsWith(`${node.key}/`)).focus();
  };
  const short = title.length > 34 ? `${title.slice(0, 33)}…` : title;
  return shape("g", {class: "node", "data-key": node.key, role: "button", tabindex: 0,
    transform: `translate(${node.x} ${node.y})`,
    click: act,
    "aria-label": `${title}, ${plain(cycles, "cycles")}${isOp ? "" : `, ${node.list.length} operations, closed`}`,
    keydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); } }},
  shape("rect", {width: NODE.width, height: NODE.height, rx: 5}), shape("rect", {class: "bar", x: 1, y: NODE.height - 4,
    height: 3, width: Math.max(1, (NODE.width - 2) * cycles / total)}),
  shape("text", {x: 8, y: 14}, short), shape("text", {x: 8, y: 26, class: "small"},
    `${plain(cycles, "cycles", brief)}, ${percent(cycles / total)}${isOp ? "" : `, ${node.list.length} ops`}`),
  shape("title", {}, title));
}
