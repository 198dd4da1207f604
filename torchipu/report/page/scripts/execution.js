// Execution: an iteration on a time line, lanes for each IPU; steps show as soon as they are wide enough.

const LANES = ["functions", "compute", "exchange", "sync", "link", "all-reduce", "host", "transfer"];
const LANE = 15;

page("execution", (wanted) => {
  const whole = fact("cycles_per_update").value || 1, lanes = lanesOf(rowsBy("runs", "ipu"));
  const chosen = {ipu: "all", found: null, tile: -1, detail: "all"}, panel = make("div", {class: "panel", id: "slice"});
  const said = make("p", {class: "readout", role: "status"});
  const seen = () => lanes.filter((one) => (chosen.ipu === "all" || one.ipu === Number(chosen.ipu))
    && (chosen.detail === "all" || one.name === "functions"));
  const chart = timePicture("What each IPU does over an iteration", whole, {
    left: 84, height: () => 24 + seen().length * (LANE + 2) + 6,
    paint: (context, view, width) => {
      seen().forEach((lane, at) => paintLane(context, view, width, lane, 20 + at * (LANE + 2), chosen));
      tiles.canvas.redraw();
      flames.redraw();
    },
    chosen: (time, y) => { const lane = seen()[Math.floor((y - 20) / (LANE + 2))]; if (lane) select(foundAt(lane,
      Math.floor(time))); },
  });
  const shown = () => (chosen.ipu !== "all" ? Number(chosen.ipu) : chosen.found ? chosen.found.run.ipu : ipus()[0]);
  const tiles = tilePicture(() => chart.view, shown, (found, tile) => select(found, tile), () => near(
    steps.find((one) => one.vertices && (rowsBy("runs", "function").get(one.function) || [{}])[0].ipu === shown())));
  const flames = flamePicture(() => chart.view, shown, (found) => {
    chosen.found = {run: found.run, step: null};
    put(panel, framePanel(found, (begin, end) => chart.show(begin, end)));
    said.textContent = `${found.name}: ${plain(found.end - found.begin, "cycles")} from ${
      plain(found.begin, "cycles")} on`;
    chart.canvas.redraw();
  });
  const select = (found, tile = -1) => {
    Object.assign(chosen, {found, tile});
    put(panel, found ? slicePanel(found, (begin, end) => chart.show(begin, end), tile)
      : note("Choose a slice to see what it is. Ctrl and the wheel zoom, dragging moves."));
    chart.canvas.redraw();
  };
  const steps = rows("steps").filter((one) => one.cycles).sort((a, b) => b.cycles * b.runs - a.cycles * a.runs);
  const mine = steps.filter((one) => one.operation === wanted.operation);
  const step = mine.find((one) => one.vertices) || mine[0];  // what takes longest, and computes if any does
  const near = (one) => {
    const run = one && rows("runs").find((other) => other.function === one.function);
    select(run ? {run, step: one} : null);
    if (run) around(one, run, chart.show);
  };
  requestAnimationFrame(bound(() => step && near(step)));
  select(null);
  return [
    controls(choice("IPU", ["all", ...ipus()], "all", (value) => { chosen.ipu = value; chart.canvas.redraw(); }),
      choice("Lanes", [["all", "all, step by step"], ["functions", "begin and end of functions"]], "all",
        (value) => { chosen.detail = value; chart.canvas.redraw(); }), chart.buttons),
    chart.canvas, legend(LANES.map((name) => [name, colourVariable(name)])),
    heading("Blocks, modules and ops"), make("div", {id: "flames"}, flames, said), heading("Tile by tile"),
    make("div", {id: "tiles"}, tiles.elements), panel,
    note(`${exact(report.summary.steps_per_update)} steps in ${exact(rows("runs").length)} runs of `
      + `${plain(whole, "cycles")}. The same is in trace.json.gz, for ui.perfetto.dev.`),
    heading("Where the cycles go"), cyclesByIpu(),
    sortable("Functions", [text("Function", "name"), amount("Runs", "runs", "", "exact"),
      amount("Cycles of a run", "cycles", "cycles"), amount("of which computed again", "recompute", "cycles"),
      {title: "Cycles of all runs", value: (one) => one.cycles * one.runs, unit: "cycles"}], rows("functions"),
        {sort: 4}), streamTables(),
    sortable("Steps of one run of each function", STEP_COLUMNS, steps, {sort: 3, operation: (one) => one.operation}),
  ];
});

/** The lanes of all IPUs that hold something, with the runs behind each. */
function lanesOf(byIpu) {
  const found = [];
  for (const [ipu, runs] of [...byIpu].sort((a, b) => a[0] - b[0])) {
    const kinds = groupBy(runs, (run) => (run.function ? "functions" : run.kind)), inside = kinds.get("functions")
      || [];
    for (const name of LANES) {
      const whole = kinds.get(name) || [], within = inside.filter((run) => name !== "functions"
        && (report.detail[run.function] || [{lanes: {}}])[0].lanes[name]);
      if (whole.length || within.length) found.push({ipu, name, whole, within, times: times(whole),
        inner: times(within)});
    }
  }
  return found;
}

/** Show a step of a run with what is before and after it. */
function around(step, run, show) {
  const length = step.cycles * step.runs, middle = run.begin + step.begin + length / 2;
  const wide = Math.max(120, 4.5 * length);
  show(middle - wide, middle + wide);
}

function times(runs) { return {begin: runs.map((run) => run.begin), end: runs.map((run) => run.end)}; }

function paintLane(context, view, width, lane, y, chosen) {
  context.fillStyle = palette.soft;
  context.fillText(lane.name === "functions" ? `ipu${lane.ipu}` : `  ${lane.name}`, 0, y + LANE / 2);
  context.fillStyle = colour(lane.name);
  fillSlices(context, view, width, lane.times.begin, lane.times.end, 0, y, LANE);
  if (lane.name === "functions") return paintRuns(context, view, width, lane, y);
  const perPixel = (view.end - view.begin) / (width - view.left);
  for (let at = after(lane.inner.end, view.begin); at < lane.within.length && lane.inner.begin[at] < view.end;) {
    const run = lane.within[at], levels = report.detail[run.function].filter((level) => level.resolution <= Math.max(1,
      perPixel));
    const {begin, end} = levels[levels.length - 1].lanes[lane.name];
    fillSlices(context, view, width, begin, end, run.begin, y, LANE);
    at = Math.max(at + 1, after(lane.inner.end, run.begin + perPixel));  // runs within one pixel cannot be told apart
  }
  const {run, step} = chosen.found || {};
  if (step && run.ipu === lane.ipu && (step.overlaps ? "transfer" : step.category) === lane.name) frame(context, view,
    width, run.begin + step.begin, run.begin + step.begin + step.cycles * step.runs, y);
}

function paintRuns(context, view, width, lane, y) {
  for (let at = after(lane.times.end, view.begin); at < lane.whole.length && lane.times.begin[at] < view.end; at += 1) {
    const run = lane.whole[at], from = Math.max(view.left, view.at(run.begin, width)),
      to = Math.min(width, view.at(run.end, width));
    if (to - from < 4) { at = Math.max(at, after(lane.times.end, run.begin
      + 4 * (view.end - view.begin) / width) - 1); continue; }
    context.fillStyle = colour(run.kind);
    context.fillRect(from, y, to - from - 0.5, LANE);
    context.fillStyle = "#fff";
    fitted(context, run.action, from, to, y + LANE / 2);
  }
}

function frame(context, view, width, begin, end, y) {
  context.strokeStyle = palette.chosen;
  context.lineWidth = 2;
  const from = Math.max(view.left, view.at(begin, width));
  context.strokeRect(from, y, Math.max(2, Math.min(width, view.at(end, width)) - from), LANE);
}

/** The run, and in it the step, that a lane shows at a time. */
function foundAt(lane, time) {
  const list = lane.whole.length ? lane.whole : lane.within, run = list[after(list.map((one) => one.end), time)];
  if (!run || run.begin > time) return null;
  const step = lane.name === "functions" ? null : (rowsBy("steps", "function").get(run.function) || []).find((one) =>
    (one.overlaps ? "transfer" : one.category) === lane.name && run.begin + one.begin <= time && time < run.begin
      + one.begin + one.cycles * one.runs);
  return lane.whole.length || step ? {run, step} : null;
}

function slicePanel({run, step}, zoom, tile) {
  const operation = step && rows("operations")[step.operation], amount = (value) =>
    number(value, {unit: "cycles", operation: step ? step.operation : -1});
  return [
    heading(step ? `${step.name} in ${run.action}` : run.action),
    facts([["Kind", step ? step.category : run.kind], ["IPU", run.ipu], ["Micro-batch", run.micro_batch >= 0
      ? run.micro_batch : ""],
      ["Begins at", amount(run.begin + (step ? step.begin : 0))],
        ["Cycles", amount(step ? step.cycles * step.runs : run.end - run.begin)],
      ["of which computed again", step || !run.recompute ? "" : amount(run.recompute)],
      ...about(operation),
      ["Vertices", step && step.vertices ? exact(step.vertices) : ""], ["Codelets", step && step.codelets],
        ["Exchanged", step && step.exchanged_bytes ? bytes(step.exchanged_bytes) : ""],
      [`Tile ${tile}`, step && step.vertices && tile >= 0 ? [number(cyclesOnTile(step, tile), {unit: "cycles"}),
        ` of the ${plain(step.cycles, "cycles")} of the slowest`] : ""],
      ["Tile balance", step && step.vertices ? [number(step.tile_balance, {show: percent}),
        " is what the mean tile works of the time that the slowest takes"] : ""]]),
    tileCycles(step), controls(button(`Zoom to ${run.action}`, () => zoom(run.begin, run.end)),
      step ? button("Zoom to the step", () => around(step, run, zoom)) : ""),
  ];
}

/** The cycles of a step on each tile, where the report has them. */
function tileCycles(step) {
  const parts = patternOf(step);
  if (!parts.length) return "";
  const count = fact("num_tiles").value, high = most(parts, (one) => one.value) || 1;
  return [heading("Cycles by tile"), picture(`Cycles of ${step.name} by tile, at most ${exact(high)}`, 90,
    (context, width, height) => {
    context.fillStyle = colour(step.category);
    for (const one of parts) context.fillRect(one.first_tile / count * width, height * (1 - one.value / high),
      Math.max(0.7, (one.end_tile - one.first_tile) / count * width), height);
  })];
}
