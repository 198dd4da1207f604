// What-if: the nearest alternatives, as the model predicts them, and the command for each.

page("what-if", () => {
  const list = rows("alternatives");
  if (!list.length) return [note("No alternatives were tried for this report."), leftOut()];
  const now = list[0].option === "" ? list[0] : {...report.summary, number: -1, change: "as it is", option: "",
    command: ""};
  const order = list[0] === now ? list : [now, ...list], panel = make("div", {class: "panel", id: "alternative"});
  const gain = (one) => one.samples_per_second / (now.samples_per_second || 1) - 1;
  const show = (one) => put(panel, heading(one.change), isRefused(one) ? note(`Refused: ${one.command}`) : [facts([
    ["Fits", one.fits ? "yes" : "no"],
    ["Throughput", [number(one.samples_per_second, {unit: "samples/s"}), `, ${signedPercent(gain(one))}`]],
    ["Cycles of an update", [number(one.cycles_per_update),
      `, ${signed(one.cycles_per_update - now.cycles_per_update)}`]],
    ["Fullest tile", [bytes(one.fullest_tile_bytes), `, ${signed(one.fullest_tile_bytes - now.fullest_tile_bytes)} B`]],
    ["Set", one.option && code(one.option)], ["Command", one.command && code(one.command)],
  ]), beside(one, now)]);
  show(order[1] || now);
  return [
    note("Each was compiled and counted by the machine model for this report. Choose one to see how to set it."),
    controls(choice("Change", order.map((one, at) => [at, one.change]), 1, (at) => show(order[at]))), panel,
    sortable("Alternatives", [
      text("Change", "change"),
      {title: "Fits", value: (one) => (isRefused(one) ? "refused" : one.fits ? "yes" : "no")},
      unless(isRefused, amount("Samples/s", "samples_per_second", "samples/s")),
      unless(isRefused, {title: "Change of throughput", value: gain, amount: true,
        show: (one) => signedPercent(gain(one))}),
      unless(isRefused, amount("Fullest tile", "fullest_tile_bytes", "B")),
      unless(isRefused, amount("Cycles of an update", "cycles_per_update", "cycles")),
      {title: "Set", value: (one) => one.option, show: (one) => make("code", {class: "short code", title: one.option},
        one.option)},
    ], order, {sort: 2, chosen: show}), leftOut(),
  ];
});

/** A change drawn beside the program as it is: what is done in a second, and how full the fullest tile is. */
function beside(one, now) {
  const bars = (title, name, show, whole = most([one, now], (other) => other[name])) => make("div", {}, heading(title),
    stackedBars(`${title}: as it is and changed`, [["as it is", now, "var(--grey)"], ["changed", one,
      one.fits ? "var(--blue)" : "var(--bad)"]].map(([name_, other, fill]) =>
      ({name: name_, parts: [[title, other[name], fill]], note: show(other[name])})), whole));
  const limit = report.summary.tile_memory_bytes;
  return make("div", {class: "columns"}, bars("Samples a second", "samples_per_second", brief),
    bars("Fullest tile", "fullest_tile_bytes", (value) => `${percent(value / limit)}`,
      Math.max(limit, one.fullest_tile_bytes, now.fullest_tile_bytes)));
}

/** Whether a change cannot be made: then its command says why. */
function isRefused(one) { return !one.cycles_per_update; }

/** Whether rules looked at the program, and changes were tried. */
function wasAdvised() { return (fact("what_if_seconds").value ?? 0) > 0; }

/** What the time for trials did not suffice for, and how to give more. */
function leftOut() {
  const list = fact("what_if_left_out").value ?? [], seconds = fact("what_if_seconds").value;
  return list.length ? note(`Not tried within ${seconds} s: ${list.join("; ")}. Write the report with more `
    + "what_if_seconds, or torchipu report --what-if SECONDS.") : "";
}
