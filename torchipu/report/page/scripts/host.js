// Host: where the time of this computer went, kernel by kernel.

page("host", () => {
  const list = rows("host");
  if (!list.length) return note("The host was not measured in this run.");
  const kinds = [...groupBy(list, (one) => one.kind)], spent = (ones) => sum(ones, (one) => one.microseconds);
  return [
    stackedBars("Microseconds of the host by kind",
      kinds.map(([name, ones]) => ({name, parts: [[name, spent(ones), "var(--blue)"]]})),
      most(kinds, ([, ones]) => spent(ones)), (value) => `${brief(value)} µs`),
    sortable("Kernels and waits", [{title: "Name", value: (one) => one.name, show: (one) => code(one.name)},
      text("Kind", "kind"),
      amount("Calls", "calls", "", "exact"), amount("Microseconds", "microseconds", "us"),
      {title: "Share", value: (one) => one.share, show: (one) => shareBar(one.share)}, amount("GFLOP/s", "gflops", ""),
        amount("GB/s", "gbytes", "")], list, {sort: 3}),
  ];
});
