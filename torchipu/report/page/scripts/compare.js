// Compare: every number of two reports with its change, what changed most first.

page("compare", () => {
  const place = make("div", {id: "compared"}), said = make("p", {class: "readout", "aria-live": "polite"});
  const file = make("input", {type: "file", accept: ".html", id: "other-report", change: async () => {
    try {
      // A document made from text runs no script and fetches nothing.
      const other = new DOMParser().parseFromString(await file.files[0].text(), "text/html").getElementById("data");
      const found = await decoded(other.textContent);
      put(place, within(first, () => comparison(found)));
      first.other = found;
      said.textContent = "";
      offerBoth(first.other);
    } catch (error) { said.textContent = `${file.files[0].name} is no report.html of torchipu: ${error.message}`; }
  }});
  if (report.other) put(place, comparison(report.other));
  return [controls(make("label", {}, "Compare with the report.html of another run", file)), said, place];
});

/** Let every page show the other report, or both beside each other. */
function offerBoth(other) {
  const place = document.getElementById("which"), views = {first: [first], second: [other], both: [first, other]};
  shown = views.first;
  for (const [name, page] of pages) if (name !== "compare") page.seen = false;  // that one holds what was chosen
  if (other.version !== first.version) {
    return put(place, "The other page has another version: only its numbers are compared.");
  }
  put(place, choice("Show", [["first", first.title], ["second", other.title], ["both", "both, beside each other"]],
    "first", (value) => { shown = views[value]; drawAnew(); }));
}

/** Numbers of both reports; one that a report lacks counts as 0. */
function joined(other) {
  const [before, now] = [report, other].map((one) =>
    new Map(rowsOf(one.numbers).map((row) => [`${row.group}\n${row.name}`, row])));
  return [...new Set([...before.keys(), ...now.keys()])].map((key) => {
    const [a, b] = [before.get(key), now.get(key)], one = a || b, from = a ? a.value : null, to = b ? b.value : null,
      change = (to || 0) - (from || 0);
    return {...one, operation: a ? a.operation : -1, from, to, change, share: change ? change / (Math.abs(from) || 0)
      : 0};
  });
}

function comparison(other) {
  const all = joined(other), state = {text: "", group: "all", changed: true},
    table = make("div", {id: "compare-table"});
  const settings = [...new Set([...Object.keys(report.settings), ...Object.keys(other.settings)])].filter((name) =>
    report.settings[name] !== other.settings[name]);
  const arrange = () => {
    const seen = all.filter((one) => (!state.changed || one.change) && (state.group === "all"
      || one.group === state.group) && one.name.toLowerCase().includes(state.text));
    const amount = (value, {unit, confidence}) => (value === null ? "–" : number(value, {unit, confidence}));
    put(table, sortable(`${exact(seen.length)} numbers`, [text("Number", "name"), text("Of", "group"),
      {title: report.title, value: (one) => one.from ?? 0, amount: true, show: (one) => amount(one.from, one)},
        {title: other.title, value: (one) => one.to ?? 0, amount: true, show: (one) => amount(one.to, one)},
      {title: "Change", value: (one) => one.change, amount: true, show: (one) =>
        make("span", {"data-value": one.change}, withUnit(signed(one.change), one.unit))},
      {title: "Share", value: (one) => Math.abs(one.share), amount: true, show: (one) => signedPercent(one.share)}],
        seen,
        {sort: 5, operation: (one) => one.operation}));
  };
  const tick = make("input", {type: "checkbox", checked: "", id: "only-changed",
    change: () => { state.changed = tick.checked; arrange(); }});
  const filter = make("input", {type: "search", id: "compare-filter",
    input: () => { state.text = filter.value.toLowerCase(); arrange(); }});
  arrange();
  return [
    make("p", {id: "compare-verdict"}, all.some((one) => one.change)
      ? `${exact(all.filter((one) => one.change).length)} of ${exact(all.length)} numbers differ.`
      : "All numbers are the same."),
    controls(choice("Of", ["all", ...new Set(all.map((one) => one.group))], "all",
      (value) => { state.group = value; arrange(); }), make("label", {}, tick, "only what changed"),
      make("label", {}, "Filter", filter)),
    table,
    settings.length ? sortable("Options and versions that differ", [{title: "Name", value: (one) => one},
      {title: report.title, value: (one) => report.settings[one] ?? "–"}, {title: other.title, value: (one) =>
      other.settings[one] ?? "–"}], settings) : "",
  ];
}
