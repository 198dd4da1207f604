// Host: where the time of this computer went, kernel by kernel.

page("host", () => {
  const list = rows("host");
  if (!list.length) {
    return note("The host was not measured in this run: it is with torchipu.Options(host_times=True), and in reports "
      + "that autoReport asks for, once the program has run.");
  }
  const kinds = [...groupBy(list, (one) => one.kind)], spent = (ones) => sum(ones, (one) => one.microseconds);
  return [
    stackedBars("Time of the host by kind",
      kinds.map(([name, ones]) => ({name, parts: [[name, spent(ones), "var(--blue)"]]})),
      most(kinds, ([, ones]) => spent(ones)), duration),
    sortable("Kernels and waits", [{title: "Name", value: (one) => one.name, show: (one) => code(one.name)},
      text("Kind", "kind"),
      amount("Calls", "calls", "", "exact"), amount("Microseconds", "microseconds", "us"),
      {title: "Share", value: (one) => one.share, show: (one) => shareBar(one.share)},
      unless((one) => !one.gflops, amount("GFLOP/s", "gflops", "")),
      unless((one) => !one.gbytes, amount("GB/s", "gbytes", ""))], list, {sort: 3}),
  ];
});

/** Microseconds at a glance. */
function duration(value) {
  return value >= 1e6 ? `${(value / 1e6).toPrecision(3)} s` : value >= 1e3 ? `${(value / 1e3).toPrecision(3)} ms`
    : `${value.toPrecision(3)} µs`;
}
