// A tile: what it holds, where, and what runs on it.

/** A tile opened; `chosen.tab` is what is seen of it. */
function tilePanel(ipu, at, chosen) {
  const tiles = report.tiles[ipu], tile = tiles.tile[at], step = tiles.step[at];
  const held = rows("shares").filter((share) => share.first_tile <= tile && tile < share.end_tile)
    .map((share) => ({...rows("variables")[share.variable], here: share.bytes})).filter((one) => one.ipu === ipu
      && !one.off_chip);
  const parts = [
    ["Details", () => facts([["Including gaps", bytes(tiles.including_gaps[at])],
      ["Excluding gaps", bytes(tiles.excluding_gaps[at])],
      ["Always held", bytes(tiles.always[at])], ["Peak", step ? jump(`step ${step}`, "liveness", {step, ipu})
        : "holds nothing that passes"], ["In interleaved memory", bytes(behindCode(tiles, at))],
      ...categoriesOf(tiles).map((name) => [name, tiles.categories[name][at] ? bytes(tiles.categories[name][at])
        : ""])])],
    ["Variables", () => sortable("Variables on this tile", [
      ...VARIABLE_COLUMNS.slice(0, 3), amount("Bytes here", "here", "B"),
      {title: "From address", value: (one) => one.address, show: (one) => (one.address_end
        ? number(one.address, {confidence: "exact"}) : "–")},
      VARIABLE_COLUMNS[4],
    ], held, {sort: 3, operation: (one) => one.operation, first: 12})],
    ["Addresses", () => addressMap(held, tiles.including_gaps[at], step)],
    ["Vertices", () => codeletsOn(ipu, tile)], ["Compute sets", () => computeSetsOn(ipu, tile)],
    ["Exchanges", () => exchangesOf(ipu, held)],
  ];
  return [heading(`Tile ${tile} of ipu${ipu}`), tabs(`Of tile ${tile}`, parts, chosen.tab,
    (tab) => { chosen.tab = tab; })];
}

/** Vertices of a tile by codelet, of all compute sets, with the code that they run. */
function codeletsOn(ipu, tile) {
  const here = patternsAt(tile);
  return sortable("Vertices on this tile", [
    {title: "Codelet", value: (one) => one.codelet, show: (one) => code(one.codelet)},
    {title: "Vertices here", value: (one) => here.get(one.by_tile) || 0, amount: true, confidence: "exact"},
    amount("Code", "bytes", "B"), {title: "Vertices of the IPU", value: (one) => one.vertices, amount: true,
      confidence: "exact"},
  ], (rowsBy("codelets", "ipu").get(ipu) || []).filter((one) => here.get(one.by_tile)), {sort: 1, first: 12});
}

/** Compute sets that run vertices on a tile, with the memory and the cycles that these take there. */
function computeSetsOn(ipu, tile) {
  const here = patternsAt(tile), steps = stepsByPlace();
  const list = (rowsBy("liveness", "ipu").get(ipu) || []).filter((one) => here.get(one.vertices_by_tile)).map((one) => {
    const step = steps.get(`${one.function}\n${one.name}`);
    return {...one, vertices: here.get(one.vertices_by_tile), cycles: step ? cyclesOnTile(step, tile) : 0};
  });
  return sortable("Compute sets on this tile", [
    {title: "Compute set", value: (one) => one.name, show: (one) => code(one.name)}, text("Function", "function"),
    {title: "Vertices here", value: (one) => one.vertices, amount: true, confidence: "exact"},
    amount("Cycles of a run", "cycles", "cycles"), amount("Control code and state", "control_bytes", "B"),
    amount("Temporaries", "temporary_bytes", "B"),
  ], list, {sort: 3, operation: (one) => one.operation, first: 12});
}

/** Steps of vertices by function and name. */
function stepsByPlace() {
  return kept("steps by place", () => new Map(rows("steps").filter((one) => one.vertices)
    .map((one) => [`${one.function}\n${one.name}`, one])));
}

/** Exchanges of an IPU, all of which have code on each of its tiles; `held` is what one of these holds. */
function exchangesOf(ipu, held) {
  const here = new Map(held.map((one) => [one.number, one.here]));
  return sortable("Exchanges of this tile", [
    {title: "Sends", value: sentBy, show: (one) => code(sentBy(one))}, amount("Code here", "code_bytes", "B"),
    {title: "Of what is sent, here", value: (one) => sum(JSON.parse(one.variables), (each) => here.get(each) || 0),
      unit: "B"},
    amount("Moved in all", "bytes", "B"), amount("To the busiest tile", "busiest_bytes", "B"),
    {title: "Pieces", value: (one) => one.fragments, amount: true, confidence: "modelled"},
  ], rowsBy("exchanges", "ipu").get(ipu) || [], {sort: 1, first: 12});
}

/** The names of what an exchange sends. */
function sentBy(exchange) {
  const names = JSON.parse(exchange.variables).map((each) => rows("variables")[each].name);
  return names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ");
}

/** Where variables lie, those held at the peak of the tile; what shares its place with others is drawn at its turn. */
function addressMap(held, full, step) {
  const now = held.filter((one) => one.address_end && (one.always || one.begin <= step && step <= one.end));
  if (!now.length) return note("Estimated without addresses, or the tile holds no variable at its peak.");
  const high = Math.max(full, most(now, (one) => one.address + one.here)), lines = 8, part = Math.ceil(high / lines),
    tall = 19, left = 62;
  return [picture(`Addresses of ${now.length} variables at the peak, from 0 to ${exact(high)} bytes`, lines * tall,
    (context, width) => {
    const scale = (width - left) / part;
    for (let at = 0; at < lines; at += 1) {
      context.fillStyle = palette.soft;
      context.fillText(exact(at * part), 0, at * tall + 8);
      context.fillStyle = palette.faint;
      context.fillRect(left, at * tall, width - left, tall - 3);
    }
    for (const one of now) {
      for (let from = one.address; from < one.address + one.here;) {
        const at = Math.floor(from / part), end = Math.min(one.address + one.here, (at + 1) * part), x = left
          + (from - at * part) * scale;
        context.fillStyle = one.always ? palette.blue : palette.orange;
        context.fillRect(x, at * tall, Math.max(1, (end - from) * scale - 0.5), tall - 3);
        context.fillStyle = "#fff";
        fitted(context, one.name, x, x + (end - from) * scale, at * tall + 8);
        from = end;
      }
    }
  }), legend([["always held", "var(--blue)"], ["held at the peak", "var(--orange)"], ["code, free, or not a variable",
    "var(--faint)"]])];
}
