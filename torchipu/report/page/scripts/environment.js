// Environment: the machine, the program's sizes, options, what was noted of the run, files, versions, all figures.

const NOTES = ["framework.json", "app.json"];

page("environment", (wanted) => {
  const place = make("div", {id: "settings"});
  const filter = make("input", {type: "search", id: "setting-filter", value: wanted.text || "",
    input: () => arrange()});
  const arrange = () => put(place, settingTables(filter.value.trim().toLowerCase()));
  arrange();
  return [
    make("div", {class: "columns"},
      make("div", {}, heading("The machine"), machineFacts()), make("div", {}, heading("The program"), programFacts())),
    controls(make("label", {}, "Filter", filter)), place, filesTable(),
  ];
});

function machineFacts() {
  const found = report.summary, known = (name) => number(found[name], {unit: fact(name).unit, confidence: "exact"});
  const tiles = found.num_tiles * found.num_ipus, memory = found.tile_memory_bytes;
  const bytesOf = (count) => number(memory * count, {unit: "B", confidence: "exact"});
  return facts([["Machine", found.title], ["Kind", "a model of the IPU; nothing ran on one"],
    ["Architecture", code(found.target)], ["Clock", known("clock_hz")], ["Replicas", exact(found.replicas)],
    ["IPUs of a replica", exact(found.num_ipus)], ["Tiles of an IPU", exact(found.num_tiles)],
    ["of which for transfers", found.io_tiles ? exact(found.io_tiles) : ""],
    ["Memory of a tile", bytesOf(1)], ["of which can hold code", known("code_region_bytes")],
    ["Memory of an IPU", bytesOf(found.num_tiles)], ["Memory of a replica", bytesOf(tiles)],
    ["Memory of all replicas", bytesOf(tiles * found.replicas)],
    ["Buffers of a replica's inputs, on the host", found.host_buffer_bytes ? known("host_buffer_bytes") : ""]]);
}

/** How large the graph is, as Poplar counts it. */
function programFacts() {
  const programs = rows("programs"), of = (...types) => programs.filter((one) => types.includes(one.type)).length;
  const vertices = rows("vertices");
  return facts([["Variables", exact(rows("variables").length)], ["Compute sets", exact(of("OnTileExecute"))],
    ["Vertices", exact(sum(vertices, (one) => one.vertices))],
    ["Edges", exact(sum(vertices, (one) => one.vertices * one.fields))],
    ["Exchanges", exact(of("DoExchange", "GlobalExchange"))], ["Stream copies", exact(of("StreamCopyMid"))],
    ["Programs", exact(programs.length)], ["Codelets", exact(new Set(rows("codelets").map((one) =>
      one.codelet)).size)], ["Operations", exact(rows("operations").length)]]);
}

/** Options, versions, notes and figures with a text in them. */
function settingTables(words) {
  const seen = (one) => `${one.name} ${one.value}`.toLowerCase().includes(words);
  const [options, rest, ...notes] = ["options", "environment", ...NOTES].map((kind) => rows("settings").filter((one) =>
    one.kind === kind && seen(one)));
  const changed = options.filter((one) => one.value !== one.usual), figures = rows("facts").filter(seen);
  const columns = [text("Name", "name"), {title: "Value", value: (one) => one.value, show: (one) => code(one.value)},
    {title: "Usual", value: (one) => one.usual, show: (one) => code(one.usual)}];
  return [
    changed.length ? sortable("Options that differ from the default", columns, changed)
      : words ? "" : note("All options are as usual."),
    ...notes.map((list, at) => (list.length ? sortable(`${NOTES[at]}, as it lay beside the report`,
      columns.slice(0, 2), list) : "")),
    rest.length ? sortable("Versions", columns.slice(0, 2), rest) : "",
    options.length ? sortable("All options", columns, options) : "",
    figures.length ? sortable("Figures of the run", [text("Name", "name"), {title: "Value", value: (one) => one.value,
      show: (one) => (typeof parsed(one.value) === "number" ? number(parsed(one.value), one)
        : code(one.value.length > 300 ? `${one.value.slice(0, 300)}…` : one.value))},
    text("Confidence", "confidence")], figures) : "",
    changed.length + rest.length + options.length + figures.length + sum(notes, (list) => list.length) ? ""
      : note("Nothing has this in its name or its value."),
  ];
}

function filesTable() {
  const list = rowsOf(report.files);
  return list.length ? sortable("Files of the report, in one directory", [{title: "File", value: (one) => one.name,
    show: (one) => code(one.name)}, text("Holds", "holds"), unless((one) => !one.bytes, amount("Size", "bytes", "B",
    "exact"))], list) : "";
}
