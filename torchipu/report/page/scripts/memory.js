// Memory: every tile of every IPU, at its own peak.

const MEASURES = [["including_gaps", "including gaps"], ["excluding_gaps", "excluding gaps"],
  ["always", "always held"]];
const ROWS_OF_TILES = 32;

function categoriesOf(tiles) { return Object.keys(tiles.categories).filter((name) =>
  name !== "gap").concat(tiles.categories.gap ? ["gap"] : []); }
function allCategories() { return [...new Set(ipus().flatMap((ipu) => categoriesOf(report.tiles[ipu])))]; }

page("memory", () => {
  if (!ipus().length) return note("The program holds nothing on tiles.");
  const limit = fact("tile_memory_bytes").value, chosen = {measure: "including_gaps", view: "map", ipu: ipus()[0],
    tile: 0};
  const fullest = most(ipus(), (ipu) => most(report.tiles[ipu].including_gaps));
  for (const ipu of ipus()) {
    const at = report.tiles[ipu].including_gaps.indexOf(fullest);
    if (at >= 0) Object.assign(chosen, {ipu, tile: at});
  }
  const maps = make("div", {class: "maps", id: "tile-maps"}), panel = make("div", {class: "panel", id: "tile"}),
    scale = make("div");
  const readout = make("p", {class: "readout", "aria-live": "polite", id: "tile-readout"});
  const byIpu = choice("Tile of", ipus().map((ipu) => [ipu, `ipu${ipu}`]), chosen.ipu, (value) => select(Number(value),
    0));
  const byNumber = make("input", {type: "number", min: 0, max: report.tiles[chosen.ipu].tile.length - 1,
    id: "tile-number",
    change: () => select(chosen.ipu, Math.min(Math.max(0, Number(byNumber.value)),
      report.tiles[chosen.ipu].tile.length - 1))});
  const select = (ipu, tile) => {
    Object.assign(chosen, {ipu, tile});
    byIpu.querySelector("select").value = ipu;
    byNumber.value = tile;
    readout.textContent = `ipu${ipu} tile ${report.tiles[ipu].tile[tile]}: ${exact(bytesOf(ipu)[tile])} B`;
    put(panel, tilePanel(ipu, tile));
    redrawAll();
  };
  const bytesOf = (ipu) => report.tiles[ipu][chosen.measure] || report.tiles[ipu].categories[chosen.measure]
    || report.tiles[ipu].tile.map(() => 0);
  const whole = () => (report.tiles[ipus()[0]][chosen.measure] ? limit : most(ipus(), (ipu) => most(bytesOf(ipu)))
    || 1);
  const arrange = () => {
    const drawnAs = chosen.view === "map" ? tileMap : tileProfile;
    maps.replaceChildren(...ipus().map((ipu) => make("figure", {}, drawnAs(ipu, chosen, bytesOf, whole, select),
      make("figcaption", {}, `ipu${ipu}: fullest `, number(most(bytesOf(ipu)), {unit: "B"}), ", all tiles ",
        number(sum(bytesOf(ipu)), {unit: "B", show: brief})))));
    scale.replaceChildren(chosen.view === "map" ? ramp(whole())
      : legend(allCategories().map((name) => [name, colourVariable(name)])));
    redrawAll();
  };
  arrange();
  select(chosen.ipu, chosen.tile);
  return [
    controls(
      choice("Show", [...MEASURES, ...allCategories()], chosen.measure,
        (value) => { chosen.measure = value; arrange(); select(chosen.ipu, chosen.tile); }),
      choice("as", [["map", "map of tiles"], ["profile", "bytes by tile"]], chosen.view,
        (value) => { chosen.view = value; arrange(); }),
      byIpu, make("label", {}, "number", byNumber)),
    scale, maps, readout, panel,
    make("div", {class: "columns"},
      make("div", {}, heading("How full tiles are"), fullness(limit)),
      make("div", {}, heading("All tiles of an IPU by category"), categoryTable())),
    largest("Largest variables that are always held", (one) => one.always && !one.off_chip),
    largest("Largest variables that come and go", (one) => !one.always && !one.off_chip),
    rows("variables").some((one) => one.off_chip) ? largest("Variables in Streaming Memory", (one) => one.off_chip)
      : "",
  ];
});

function tileMap(ipu, chosen, bytesOf, whole, select) {
  const count = report.tiles[ipu].tile.length, wide = Math.ceil(count / ROWS_OF_TILES);
  const at = (event) => {
    const [x, y] = place(event), size = event.currentTarget.clientWidth / wide;
    return Math.min(count - 1, Math.floor(y / size) * wide + Math.min(wide - 1, Math.floor(x / size)));
  };
  const moves = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -wide, ArrowDown: wide};
  return picture(`Map of the tiles of ipu${ipu}. Arrow keys move, a click opens a tile`, (width) =>
    width / wide * Math.ceil(count / wide), (context, width) => {
    const size = width / wide, bytes = bytesOf(ipu), full = whole(), gap = size > 6 ? 0.8 : -0.3;
    for (let tile = 0; tile < count; tile += 1) {
      context.fillStyle = rampColour(bytes[tile] / full);
      context.fillRect(tile % wide * size, Math.floor(tile / wide) * size, size - gap, size - gap);
    }
    if (chosen.ipu === ipu) {
      context.strokeStyle = palette.chosen;
      context.lineWidth = 2;
      context.strokeRect(chosen.tile % wide * size, Math.floor(chosen.tile / wide) * size, size, size);
    }
  }, {
    click: (event) => select(ipu, at(event)),
    keydown: (event) => {
      const by = moves[event.key];
      if (by) { event.preventDefault(); select(ipu,
        Math.min(count - 1, Math.max(0, (chosen.ipu === ipu ? chosen.tile : 0) + by))); }
    },
  });
}

function tileProfile(ipu, chosen, bytesOf, whole, select) {
  const tiles = report.tiles[ipu], count = tiles.tile.length;
  return picture(`Bytes by tile of ipu${ipu}, by category. Arrow keys move, a click opens a tile`, 180,
    (context, width, height) => {
    const high = Math.max(fact("tile_memory_bytes").value, most(tiles.including_gaps)), base = new Float64Array(count);
    for (const name of categoriesOf(tiles)) {
      context.fillStyle = colour(name);
      tiles.categories[name].forEach((bytes, tile) => {
        const y = height - (base[tile] + bytes) / high * height;
        if (bytes) context.fillRect(tile / count * width, y, width / count + 0.3, bytes / high * height);
        base[tile] += bytes;
      });
    }
    context.strokeStyle = palette.bad;
    const limit = height - fact("tile_memory_bytes").value / high * height + 1;
    context.strokeRect(0, limit, width, 0);
    if (chosen.ipu === ipu) { context.fillStyle = palette.chosen; context.fillRect(chosen.tile / count * width, 0, 1.5,
      height); }
  }, {
    click: (event) => select(ipu,
      Math.min(count - 1, Math.floor(place(event)[0] / event.currentTarget.clientWidth * count))),
    keydown: (event) => {
      const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (by) { event.preventDefault(); select(ipu, Math.min(count - 1, Math.max(0, chosen.tile + by))); }
    },
  });
}

function ramp(full) {
  return picture(`Colours from 0 to ${brief(full)}B, red beyond`, 34, (context, width) => {
    const wide = Math.min(width, 320);
    for (let x = 0; x < wide; x += 1) { context.fillStyle = rampColour(x / wide); context.fillRect(x, 2, 1.5, 10); }
    context.fillStyle = palette.soft;
    context.fillText("0", 0, 24);
    const text = `${brief(full)}B`;
    context.fillText(text, wide - context.measureText(text).width, 24);
  });
}

/** A tile opened: its categories, its addresses, its variables. */
function tilePanel(ipu, at) {
  const tiles = report.tiles[ipu], tile = tiles.tile[at], step = tiles.step[at];
  const held = rows("shares").filter((share) => share.first_tile <= tile && tile < share.end_tile)
    .map((share) => ({...rows("variables")[share.variable], here: share.bytes})).filter((one) => one.ipu === ipu
      && !one.off_chip);
  return [
    heading(`Tile ${tile} of ipu${ipu}`),
    make("div", {class: "columns"}, facts([["Including gaps", bytes(tiles.including_gaps[at])],
      ["Excluding gaps", bytes(tiles.excluding_gaps[at])],
      ["Always held", bytes(tiles.always[at])], ["Peak", step ? jump(`step ${step}`, "liveness", {step, ipu})
        : "holds nothing that passes"],
      ...categoriesOf(tiles).map((name) => [name, tiles.categories[name][at] ? bytes(tiles.categories[name][at])
        : ""])]),
      make("div", {}, heading("Address map"), addressMap(held, tiles.including_gaps[at], step))),
    sortable("Variables on this tile", [
      ...VARIABLE_COLUMNS.slice(0, 3), amount("Bytes here", "here", "B"),
      {title: "From address", value: (one) => one.address, show: (one) => (one.address_end
        ? number(one.address, {confidence: "exact"}) : "–")},
      VARIABLE_COLUMNS[4],
    ], held, {sort: 3, operation: (one) => one.operation, first: 12}),
  ];
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

function fullness(limit) {
  const full = ipus().flatMap((ipu) => report.tiles[ipu].including_gaps), high = Math.max(limit, most(full)),
    counts = new Array(20).fill(0);
  for (const bytes of full) counts[Math.min(19, Math.floor(20 * bytes / high))] += 1;
  return histogram("Tiles by how full they are", counts,
    counts.map((_, at) => `${Math.round(100 * at / 20 * high / limit)} %`));
}

function categoryTable() {
  const list = allCategories().map((name) =>
    ({name, sums: ipus().map((ipu) => sum(report.tiles[ipu].categories[name] || []))}));
  return sortable("Bytes of all tiles", [text("Category", "name"),
    ...ipus().map((ipu, at) => ({title: `ipu${ipu}`, value: (one) => one.sums[at], unit: "B"}))], list);
}

function largest(caption, held) {
  const list = rows("variables").filter(held).sort((a, b) => b.bytes - a.bytes);
  const maker = (one) => rows("operations")[one.operation];
  return list.length ? sortable(caption, [...VARIABLE_COLUMNS, text("IPU", "ipu"),
    {title: "Made by", value: (one) => (maker(one) ? maker(one).module : ""), show: (one) =>
      (maker(one) ? [maker(one).module, " ", lineOf(maker(one))] : "")},
  ], list, {operation: (one) => one.operation, first: 8}) : "";
}
