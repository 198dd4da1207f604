// Pipeline: stages and their micro-batches over time; one micro-batch is followed forward and backward.

page("pipeline", () => {
  const runs = rows("runs").filter((run) => run.function && /^\d+[FB]/.test(run.function)).map((run) =>
    ({...run, stage: parseInt(run.function, 10)}));
  if (!runs.length) return note("The program has no stages that run for micro-batches.");
  const batches = [...new Set(runs.map((run) => run.micro_batch))].sort((a, b) => a - b),
    chosen = {batch: batches[Math.min(1, batches.length - 1)], by: "ipu"};
  const panel = make("div", {class: "panel", id: "journey"}), high = 36;
  const others = rows("runs").filter((run) => !/^\d+[FB]/.test(run.function) && run.kind !== "transfer");
  const lanes = () => [...new Set(runs.map((run) => run[chosen.by]))].sort((a, b) => a - b);
  const whole = most(rows("runs"), (run) => run.end);
  const chart = timePicture("Stages and micro-batches over time", whole, {
    left: 64, height: () => 26 + lanes().length * high, keys: {ArrowUp: () => follow(chosen.batch + 1), ArrowDown: () =>
      follow(chosen.batch - 1)},
    paint: (context, view, width) => paintPipeline(context, view, width, lanes(), runs, others, chosen, high),
    chosen: (time, y) => {
      const lane = lanes()[Math.floor((y - 20) / high)], run = runs.find((one) => one[chosen.by] === lane
        && one.begin <= time && time < one.end);
      if (run) follow(run.micro_batch);
    },
  });
  const follow = (batch) => {
    if (!batches.includes(batch)) return;
    chosen.batch = input.value = batch;
    put(panel, journeyPanel(runs.filter((run) => run.micro_batch === batch), batch, chart.show));
    chart.canvas.redraw();
  };
  const input = make("input", {type: "number", id: "micro-batch", min: batches[0], max: batches[batches.length - 1],
    value: chosen.batch, input: () => follow(Number(input.value))});
  follow(chosen.batch);
  const mine = runs.filter((run) => run.micro_batch === chosen.batch);
  requestAnimationFrame(bound(() => chart.show(0, 1.4 * most(mine, (run) => run.end))));
  const fill = fact("pipeline_fill").value, stages = stageRows(runs);
  const named = rows("stages").find((one) => one.is_critical);
  const critical = stages.find((one) => named && one.stage === named.number)
    || stages.reduce((best, one) => (one.busy > best.busy ? one : best));
  return [
    facts([["Bubble", [number(1 - fill, {show: percent}), " of pipeline cycles fill or empty the pipeline"]],
      ["Critical stage", [`stage ${critical.stage} on ipu${critical.ipu}: `, number(critical.busy, {unit: "cycles"}),
        " an iteration; the others wait for it"]]]),
    controls(choice("A line for each", [["ipu", "IPU"], ["stage", "stage"]], chosen.by,
      (value) => { chosen.by = value; chart.canvas.redraw(); }),
      make("label", {}, "Follow micro-batch", input), chart.buttons),
    chart.canvas, legend(["forward", "backward", "recompute", "update", "all-reduce", "link"].map((name) =>
      [name === "recompute" ? "forward computed again" : name, colourVariable(name)])),
    panel, sortable("Stages in an iteration", STAGE_COLUMNS(critical), stages), stashTable(),
  ];
});

function paintPipeline(context, view, width, lanes, runs, others, chosen, high) {
  const box = (run, name, from, to, y, faded) => {
    if (to <= view.begin || from >= view.end) return;
    context.globalAlpha = faded ? 0.28 : 1;
    context.fillStyle = colour(name);
    const x = Math.max(view.left, view.at(from, width));
    context.fillRect(x, y, Math.max(0.6, Math.min(width, view.at(to, width)) - x - 0.6), high - 8);
  };
  context.fillStyle = palette.soft;
  const word = chosen.by === "ipu" ? "ipu" : "stage ";
  lanes.forEach((lane, at) => context.fillText(`${word}${lane}`, 0, 34 + at * high));
  if (chosen.by === "ipu") for (const run of others) { const at = lanes.indexOf(run.ipu); if (at >= 0) box(run,
    run.kind, run.begin, run.end, 20 + at * high, false); }
  const path = [];
  for (const run of runs) {
    const y = 20 + lanes.indexOf(run[chosen.by]) * high, mine = run.micro_batch === chosen.batch;
    box(run, run.kind, run.begin + run.recompute, run.end, y, !mine);
    if (run.recompute) box(run, "recompute", run.begin, run.begin + run.recompute, y, !mine);
    context.globalAlpha = 1;
    context.fillStyle = mine ? "#fff" : palette.soft;
    if (run.end > view.begin && run.begin < view.end) fitted(context, String(run.micro_batch),
      Math.max(view.left, view.at(run.begin, width)), view.at(run.end, width), y + (high - 8) / 2);
    if (mine) path.push([run.begin, view.at((run.begin + run.end) / 2, width), y + high - 13]);  // below its number
  }
  path.sort((a, b) => a[0] - b[0]);
  context.strokeStyle = palette.chosen;
  context.lineWidth = 2;
  context.save();
  context.beginPath();
  context.rect(view.left, 0, width, 20 + lanes.length * high);
  context.clip();
  context.beginPath();
  path.forEach(([, x, y]) => context.lineTo(x, y));
  context.stroke();
  context.fillStyle = palette.chosen;
  for (const [, x, y] of path) {
    context.beginPath();
    context.arc(x, y, 3.2, 0, 7);
    context.fill();
  }
  context.restore();
}

/** Where a micro-batch is when, and for how long it waits. */
function journeyPanel(runs, batch, zoom) {
  const order = [...runs].sort((a, b) => a.begin - b.begin), first = order[0].begin, last = order[order.length - 1].end;
  const waits = order.map((run, at) => ({...run, cycles: run.end - run.begin, wait: at ? run.begin - order[at - 1].end
    : 0}));
  return [
    heading(`Micro-batch ${batch}: ${waits.length} runs on ${new Set(waits.map((run) => run.ipu)).size} IPUs, `
      + `${plain(last - first, "cycles")} from its begin to its end`),
    button("Zoom to it", () => zoom(first, last)),
    sortable("Its way", [text("Run", "action"), text("Stage", "stage"), text("IPU", "ipu"), text("Kind", "kind"),
      amount("Begins", "begin", "cycles"), amount("Cycles", "cycles", "cycles"),
      amount("Computed again", "recompute", "cycles"), amount("Waited before", "wait", "cycles")], waits,
    {chosen: (one) => openDetails(`Operations of ${one.function}`, operationsOf(one.function))}),
  ];
}

function operationsOf(name) {
  const cycles = groupBy((rowsBy("steps", "function").get(name) || []).filter((step) => step.operation >= 0),
    (step) => step.operation);
  const list = [...cycles].map(([at, steps]) =>
    ({...rows("operations")[at], here: sum(steps, (step) => step.cycles * step.runs)}));
  return sortable("Cycles of one run", [...OPERATION, amount("Cycles", "here", "cycles")], list,
    {sort: 3, operation: (one) => one.number});
}

function stageRows(runs) {
  const whole = fact("cycles_per_update").value || 1, spent = (list) => sum(list, (run) => run.end - run.begin);
  return [...groupBy(runs, (run) => run.stage)].sort((a, b) => a[0] - b[0]).map(([stage, list]) => {
    const back = list.filter((run) => run.kind === "backward"), busy = spent(list);
    return {stage, ipu: list[0].ipu,
      blocks: [...new Set(rows("operations").filter((one) => one.stage === stage).map((one) => one.block))].join(", "),
      busy, share: busy / whole,
      forward: spent(list.filter((run) => run.kind === "forward")), recompute: sum(list, (run) => run.recompute),
        backward: spent(back) - sum(back, (run) => run.recompute)};
  });
}

function STAGE_COLUMNS(critical) {
  const amount = (title, name) => ({title, value: (one) => one[name], unit: "cycles"});
  return [{title: "Stage", value: (one) => one.stage, show: (one) =>
    `${one.stage}${one.stage === critical.stage ? " (critical)" : ""}`}, text("IPU", "ipu"), text("Blocks", "blocks"),
    amount("Forward", "forward"), amount("Computed again", "recompute"), amount("Backward", "backward"),
      amount("Busy", "busy"),
    {title: "Share of the iteration", value: (one) => one.share, show: (one) => shareBar(one.share)}];
}

function stashTable() {
  const list = rows("variables").filter((one) => one.depth > 1);
  return list.length ? sortable("Stashes: values that wait for several micro-batches at once",
    [text("Variable", "name"), text("IPU", "ipu"),
    amount("Copies", "depth", "", "exact"), amount("Bytes of all copies", "bytes", "B"), text("Role", "role")], list,
      {sort: 3, operation: (one) => one.operation})
    : note("Nothing is stashed: no value waits for several micro-batches.");
}
