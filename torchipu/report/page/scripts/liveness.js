// Liveness: what passing variables take over the steps of the program, and what lives at one of them.

page("liveness", (wanted) => {
  const all = rows("liveness");
  if (!all.length) return note("The program computes nothing.");
  const byIpu = rowsBy("liveness", "ipu"), last = all[all.length - 1].step + 1;
  const peak = all.reduce((best, one) => (one.live_bytes > best.live_bytes ? one : best));
  const asked = wanted.step ? all.find((one) => one.step === wanted.step && (wanted.ipu === undefined
    || one.ipu === wanted.ipu))
    : wanted.operation === undefined ? null : all.find((one) => one.operation === wanted.operation);
  const chosen = {at: all.indexOf(asked || peak), measure: "live_bytes", variable: null, beside: []};
  const panel = make("div", {class: "panel", id: "live-step"}), others = make("div", {class: "beside",
    id: "steps-beside"});
  const chart = timePicture("Bytes held at each step", last, {
    left: 64, height: 240, unit: "steps", chosen: (time) => select(nearest(time)),
    keys: {ArrowLeft: () => select(chosen.at - 1), ArrowRight: () => select(chosen.at + 1)},
    paint: (context, view, width) => paintCurves(context, view, width, byIpu, chosen, all),
  });
  const nearest = (time) => {
    const at = after(all.map((one) => one.step), time);
    return at && (at === all.length || time - all[at - 1].step < all[at].step - time) ? at - 1 : at;
  };
  const select = (at) => {
    chosen.at = Math.min(all.length - 1, Math.max(0, at));
    slider.value = chosen.at;
    put(panel, stepPanel(all[chosen.at], show), controls(button("Keep it beside others", () => keep(chosen.at))));
    chart.canvas.redraw();
  };
  const show = (variable) => { chosen.variable = variable; chart.canvas.redraw(); };
  const keep = (at, kept = true) => {
    chosen.beside = [...chosen.beside.filter((one) => one !== at), ...(kept ? [at] : [])].sort((a, b) => a - b);
    put(others, chosen.beside.map((one) => make("div", {class: "panel"}, stepPanel(all[one], show), controls(
      button("Remove", () => keep(one, false)), button("Choose", () => select(one))))));
    chart.canvas.redraw();
  };
  const slider = make("input", {type: "range", min: 0, max: all.length - 1, value: chosen.at, id: "live-slider",
    input: () => select(Number(slider.value))});
  select(chosen.at);
  return [
    controls(
      choice("Show", [["live_bytes", "all tiles, what is not always held"], ["fullest_bytes", "the fullest tile"]],
        chosen.measure, (value) => { chosen.measure = value; chart.canvas.redraw(); }),
      chart.buttons, make("label", {}, "Step", slider), button("Peak", () => select(all.indexOf(peak)))),
    chart.canvas, legend([...byIpu.keys()].map((ipu, at) => [`ipu${ipu}`, `var(--${LINES[at % LINES.length]})`])),
    note("Choose a variable below to see how long it lives, drawn on the curve. Ctrl and the wheel zoom."), panel,
    others,
  ];
});

function paintCurves(context, view, width, byIpu, chosen, all) {
  const high = most(all, (one) => one[chosen.measure]) || 1, height = 240, y = (bytes) =>
    height - 4 - bytes / high * (height - 28);
  if (chosen.variable) {
    const one = chosen.variable;
    context.globalAlpha = 0.22;
    context.fillStyle = palette.chosen;
    const from = view.at(one.begin, width), to = view.at(one.end + 1, width);
    context.fillRect(from, 18, Math.max(2, to - from), height);
    context.globalAlpha = 1;
  }
  [...byIpu.values()].forEach((steps, at) => {
    context.strokeStyle = lineColour(at);
    context.lineWidth = 1.3;
    context.beginPath();
    traceCurve(context, view, width, steps, (one) => y(one[chosen.measure]));
    context.stroke();
  });
  for (const at of chosen.beside) {
    context.fillStyle = palette.accent;
    context.fillRect(view.at(all[at].step, width) - 0.5, 18, 1.5, height);
    context.fillText(String(all[at].step), view.at(all[at].step, width) + 3, 26);
  }
  context.fillStyle = palette.chosen;
  context.fillRect(view.at(all[chosen.at].step, width) - 0.5, 18, 1.5, height);
  context.clearRect(0, 0, view.left, height);
  context.fillStyle = palette.soft;
  for (const share of [0, 0.5, 1]) context.fillText(plain(high * share, "B", brief), 0,
    Math.min(height - 8, y(high * share)));
}

/** A line through steps, broken where another function begins; a pixel shows its lowest and its highest step. */
function traceCurve(context, view, width, steps, y) {
  let pixel = -1, low = 0, high = 0, within = null;
  const end = () => { if (pixel >= 0) { context.lineTo(pixel, low); context.lineTo(pixel, high); } };
  for (const one of steps) {
    const x = Math.round(view.at(one.step, width)), at = y(one);
    if (x < view.left || x > width) continue;
    if (x !== pixel || one.function !== within) {
      end();
      if (one.function !== within) context.moveTo(x, at);
      pixel = x;
      low = high = at;
      within = one.function;
    }
    low = Math.max(low, at);
    high = Math.min(high, at);
  }
  end();
}

function stepPanel(step, show) {
  const operation = rows("operations")[step.operation];
  const live = rows("variables").filter((one) => one.ipu === step.ipu && !one.always && !one.off_chip
    && one.begin <= step.step && step.step <= one.end);
  return [
    heading(`Step ${step.step} on ipu${step.ipu}: ${step.name}`),
    facts([["Function", step.function],
      ["Held by what passes", number(step.live_bytes, {unit: "B", operation: step.operation})],
      ["The fullest tile", number(step.fullest_bytes, {unit: "B", operation: step.operation})],
      ...about(operation)]), stackOf(operation),
    sortable(`${live.length} variables live`, [
      ...VARIABLE_COLUMNS, {title: "Made by", value: (one) => (rows("operations")[one.operation] || {}).module || "",
        show: (one) => { const maker = rows("operations")[one.operation]; return maker
          ? [opener(maker), " ", maker.module, " ", lineOf(maker)] : ""; }},
    ], live, {sort: 3, chosen: show, first: 15}),
  ];
}
