// Numerics: what half would lose of each tensor, and the loss scale.

page("numerics", () => {
  const list = rows("numerics"), scale = fact("loss_scale_over_time").value;
  const place = make("div", {class: "panel", id: "exponents"});
  const advice = fact("loss_scale_advice").value;
  const curve = [...(scale && scale.length ? [heading("Loss scale over time"), scale.length > 1
    ? lineChart("Loss scale over calls", scale) : note(`${exact(scale[0][1])} in all calls.`)] : []),
  advice ? make("p", {id: "scale-advice", class: "lines"}, advice.words) : ""];
  if (!list.length) return [...curve,
    note("Magnitudes were not counted: compile with torchipu.Options(statistics=True), and call it first.")];
  const show = (one) => {
    const counts = new Map(JSON.parse(one.exponents || "[]")), from = Math.min(...counts.keys());
    const all = counts.size ? Array.from({length: Math.max(...counts.keys()) - from + 1}, (_, at) => from + at) : [];
    put(place, heading(`Exponents of ${one.tensor}`), histogram(`Elements of ${one.tensor} by exponent of two`,
      all.map((exponent) => counts.get(exponent) || 0), all.map((exponent) => `2^${exponent}`)),
        operationNamed(one.operation));
  };
  show(list[0]);
  const amount = (title, name) => ({title, value: (one) => one[name], unit: "", confidence: "measured"});
  return [...curve, place, sortable("Tensors", [text("Tensor", "tensor"), amount("Elements", "elements"),
    amount("Overflows", "overflows"), amount("NaN", "nans"),
    {title: "Underflow", value: (one) => one.underflow_share, show: (one) => shareBar(one.underflow_share)},
      amount("Smallest", "smallest"), amount("Largest", "largest")], list, {sort: 2, chosen: show})];
});

/** A button that opens an op, given by number or name. */
function operationNamed(name) {
  const found = rows("operations").find((one) => one.number === name || one.name === name);
  return found ? make("p", {}, opener(found), " ", sourceOf(found)) : "";
}

/** Steps of a value over calls: each `[call, value]` holds until the next one. */
function lineChart(label, changes) {
  const high = most(changes, ([, value]) => value) || 1, last = changes[changes.length - 1][0] + 1;
  const x = (call) => 60 + call * 560 / last, y = (value) => 100 - 86 * value / high;
  const points = changes.map(([call, value], at) =>
    `${x(call)},${y(value)} ${x(at + 1 < changes.length ? changes[at + 1][0] : last)},${y(value)}`).join(" ");
  return shape("svg", {viewBox: "0 0 640 120", width: 640, role: "img", "aria-label": label},
    shape("polyline", {points, fill: "none", stroke: "var(--blue)", "stroke-width": 2}),
    shape("text", {x: 0, y: 18, class: "axis"}, brief(high)), shape("text", {x: 0, y: 104, class: "axis"}, "0"),
    shape("text", {x: 60, y: 118, class: "axis"}, "call 0"), shape("text", {x: 620, y: 118, class: "axis",
      "text-anchor": "end"}, `call ${exact(last)}`));
}
