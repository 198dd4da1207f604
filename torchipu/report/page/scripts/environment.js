// Environment: options, those that are not as usual first, versions, and the facts of the run.

page("environment", () => {
  const [options, rest] = ["options", "environment"].map((kind) => rows("settings").filter((one) => one.kind === kind));
  const changed = options.filter((one) => one.value !== one.usual);
  const columns = [text("Name", "name"), {title: "Value", value: (one) => one.value, show: (one) => code(one.value)},
    {title: "Usual", value: (one) => one.usual, show: (one) => code(one.usual)}];
  return [
    changed.length ? sortable("Options that differ from the default", columns, changed)
      : note("All options are as usual."),
    sortable("Versions", columns.slice(0, 2), rest), sortable("All options", columns, options),
    sortable("Figures of the run", [text("Name", "name"), {title: "Value", value: (one) => one.value, show: (one) =>
      (typeof parsed(one.value) === "number" ? number(parsed(one.value), one) : code(one.value.length > 300
      ? `${one.value.slice(0, 300)}…` : one.value))},
      text("Confidence", "confidence")], rows("facts")),
  ];
});
