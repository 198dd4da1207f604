// Insights: what memory goes to, in the whole model, on an IPU or on a tile, and what would take less.

const FEW = 5;

page("insights", () => {
  if (!ipus().length) return note("The program holds nothing on tiles.");
  const place = make("div", {id: "largest"}), scope = {ipu: "all", tile: ""};
  const arrange = () => put(place, largestParts(scope));
  const tile = make("input", {type: "number", min: 0, max: fact("num_tiles").value - 1, id: "insight-tile",
    placeholder: "all", input: () => { scope.tile = tile.value; arrange(); }});
  arrange();
  return [
    memoryInUse(), fullestTiles(),
    heading("What to change"), adviceList(rows("advice")),
    heading("Largest parts"),
    controls(choice("Of", [["all", "the model"], ...ipus().map((ipu) => [ipu, `ipu${ipu}`])], "all",
      (value) => { scope.ipu = value; arrange(); }), make("label", {}, "on tile", tile)),
    place, heading("Floats that could be halves"), floats(),
  ];
});

/** Whether it fits, and how much of the memory of all tiles is in use. */
function memoryInUse() {
  const limit = fact("tile_memory_bytes").value, found = report.summary;
  const used = (name) => (ipu) => sum(report.tiles[ipu][name]), room = (ipu) => report.tiles[ipu].tile.length * limit;
  const line = (name) => ipus().map((ipu, at) => [at ? ", " : "", `ipu${ipu} `, number(used(name)(ipu) / room(ipu),
    {show: percent})]);
  return [
    make("p", {class: found.fits ? "good" : "bad"}, found.fits ? "It fits: every tile has room." :
      `Out of memory: the fullest tile lacks ${plain(found.fullest_tile_bytes - limit, "B")}.`),
    facts([["In use, of all tiles", line("excluding_gaps")], ["with gaps", line("including_gaps")],
      ["Fullest tile", number(found.fullest_tile_bytes / limit, {show: percent})]]),
  ];
}

function fullestTiles() {
  const all = ipus().flatMap((ipu) => report.tiles[ipu].tile.map((tile, at) => ({ipu, tile, at,
    including_gaps: report.tiles[ipu].including_gaps[at], excluding_gaps: report.tiles[ipu].excluding_gaps[at],
    always: report.tiles[ipu].always[at]})));
  const limit = fact("tile_memory_bytes").value;
  return sortable("The five fullest tiles", [
    {title: "Tile", value: (one) => one.tile, show: (one) => `tile ${one.tile} of ipu${one.ipu}`},
    amount("Including gaps", "including_gaps", "B"),
    {title: "Share", value: (one) => one.including_gaps, show: (one) => shareBar(one.including_gaps / limit)},
    amount("Excluding gaps", "excluding_gaps", "B"), amount("Always held", "always", "B"),
  ], largestOf(all, (one) => one.including_gaps, FEW), {chosen: (one) => go("memory", {ipu: one.ipu, tile: one.at})});
}

/** Code, state, exchanges and variables that take most, of the model, an IPU, or a tile of these. */
function largestParts({ipu, tile}) {
  const computing = fact("num_tiles").value - fact("io_tiles").value, on = tile === "" ? -1 : Number(tile);
  const here = on < 0 ? null : patternsAt(on), isMine = (one) => ipu === "all" || one.ipu === Number(ipu);
  const table = (caption, columns, name, each, tiles) => {
    const list = rows(name).filter((one) => isMine(one) && one[each] && tiles(one)).map((one) => ({...one,
      all: one[each] * tiles(one)}));
    return list.length ? sortable(caption, [...columns, text("IPU", "ipu"), amount("Bytes on a tile", each, "B"),
      ...(here ? [] : [amount("On all tiles", "all", "B")])], largestOf(list, (one) => one.all, list.length),
    {first: FEW, operation: (one) => one.operation ?? -1}) : note(`${caption}: none here.`);
  };
  const everywhere = () => (here ? Number(on < computing) : computing);
  const where = (pattern) => (one) => (here ? Number(here.has(one[pattern])) : tilesOf(one[pattern]));
  const named = (title, value) => [{title, value, show: (one) => code(value(one))}];
  return [
    table("Largest vertex code", named("Codelet", (one) => one.codelet), "codelets", "bytes", everywhere),
    table("Largest vertex state and control code", named("Compute set", (one) => one.name), "liveness", "control_bytes",
      where("vertices_by_tile")),
    table("Largest code of exchanges", named("Sends", sentBy), "exchanges", "code_bytes", everywhere),
    variablesAtPeak("Largest variables that are always held", isMine, on, (one) => one.always),
    variablesAtPeak("Largest variables that are held at the peak only", isMine, on, (one) => isAtPeak(one)),
  ];
}

/** Whether a variable that comes and goes is held at the peak of its IPU. */
function isAtPeak(one) {
  const peak = kept(`peak of ${one.ipu}`, () => largestOf(rowsBy("liveness", "ipu").get(one.ipu) || [], (step) =>
    step.live_bytes, 1)[0]);
  return !one.always && peak && one.begin <= peak.step && peak.step <= one.end;
}

function variablesAtPeak(caption, isMine, tile, held) {
  const on = (one) => (tile < 0 ? one.bytes : sum((rowsBy("shares", "variable").get(one.number) || []).filter((share) =>
    share.first_tile <= tile && tile < share.end_tile), (share) => share.bytes));
  const list = rows("variables").filter((one) => isMine(one) && !one.off_chip && held(one)).map((one) => ({...one,
    bytes: on(one)})).filter((one) => one.bytes);
  return list.length ? sortable(caption, [...VARIABLE_COLUMNS, text("IPU", "ipu")], list, {sort: 3, first: FEW,
    operation: (one) => one.operation}) : note(`${caption}: none here.`);
}

/** Variables of floats on tiles, and what they would take less as halves. */
function floats() {
  const all = rows("variables").filter((one) => !one.off_chip && one.bytes);
  const counted = new Map(rows("numerics").map((one) => [one.tensor, one]));
  const list = all.filter((one) => one.dtype === "float" && one.role !== "hyperparameter").map((one) => ({...one,
    saved: one.bytes / 2, numerics: counted.get(one.name)}));
  if (!list.length) return note("No variable on the tiles is a float.");
  const saved = sum(list, (one) => one.saved);
  return [
    make("p", {}, `${exact(list.length)} variables are float32; as halves they would take `, bytes(saved),
      ` less, ${percent(saved / sum(all, (one) => one.bytes))} of what all variables take.`
      + (counted.size ? "" : " What halves would lose of them was not counted: Options(statistics=True) does.")),
    sortable("Float32 variables", [...VARIABLE_COLUMNS.slice(0, 4), amount("Less as halves", "saved", "B"),
      text("IPU", "ipu"), unless((one) => !one.numerics, {title: "Lost by halves", value: (one) => (one.numerics
        ? one.numerics.underflow_share : -1), show: (one) => [shareBar(one.numerics.underflow_share),
        one.numerics.overflows ? `, ${exact(one.numerics.overflows)} too large` : ""]}),
    ], list, {sort: 4, first: FEW, operation: (one) => one.operation}),
  ];
}
