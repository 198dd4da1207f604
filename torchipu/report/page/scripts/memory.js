// Memory: every tile of every IPU, at its own peak.

const MEASURES = [["including_gaps", "including gaps"], ["excluding_gaps", "excluding gaps"],
  ["always", "always held"]];
const ROWS_OF_TILES = 32;

function categoriesOf(tiles) { return Object.keys(tiles.categories).filter((name) =>
  name !== "gap").concat(tiles.categories.gap ? ["gap"] : []); }
function allCategories() { return [...new Set(ipus().flatMap((ipu) => categoriesOf(report.tiles[ipu])))]; }

page("memory", (wanted) => {
  if (!ipus().length) return note("The program holds nothing on tiles.");
  const limit = fact("tile_memory_bytes").value, chosen = {measure: "including_gaps", view: "map", ipu: ipus()[0],
    tile: 0, tab: 0};
  const fullest = most(ipus(), (ipu) => most(report.tiles[ipu].including_gaps));
  for (const ipu of ipus()) {
    const at = report.tiles[ipu].including_gaps.indexOf(fullest);
    if (at >= 0) Object.assign(chosen, {ipu, tile: at});
  }
  if (wanted.tile >= 0) Object.assign(chosen, wanted);
  const maps = make("div", {class: "maps", id: "tile-maps"}), panel = make("div", {class: "panel", id: "tile"}),
    scale = make("div", {class: "ramp"});
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
    readout.textContent = `ipu${ipu} tile ${report.tiles[ipu].tile[tile]}: ${plain(bytesOf(ipu)[tile], "B")}`;
    put(panel, tilePanel(ipu, tile, chosen));
    redrawAll();
  };
  const bytesOf = (ipu) => report.tiles[ipu][chosen.measure] || report.tiles[ipu].categories[chosen.measure]
    || report.tiles[ipu].tile.map(() => 0);
  const whole = () => (report.tiles[ipus()[0]][chosen.measure] ? limit : most(ipus(), (ipu) => most(bytesOf(ipu)))
    || 1);
  const arrange = () => {
    const drawnAs = chosen.view === "map" ? tileMap : tileProfile;
    put(maps, ipus().map((ipu) => make("figure", {}, drawnAs(ipu, chosen, bytesOf, whole, select),
      make("figcaption", {}, `ipu${ipu}: fullest `, number(most(bytesOf(ipu)), {unit: "B"}), ", all tiles ",
        number(sum(bytesOf(ipu)), {unit: "B", show: brief})))));
    put(scale, chosen.view === "map" ? ramp(whole())
      : legend(partNames(chosen.view).map((name) => [name, colourVariable(name)])));
    redrawAll();
  };
  arrange();
  select(chosen.ipu, chosen.tile);
  return [
    controls(
      choice("Show", [...MEASURES, ...allCategories()], chosen.measure,
        (value) => { chosen.measure = value; arrange(); select(chosen.ipu, chosen.tile); }),
      choice("as", [["map", "map of tiles"], ["profile", "bytes by category"], ["region", "bytes by region"],
        ["liveness", "bytes by liveness"]], chosen.view, (value) => { chosen.view = value; arrange(); }),
      byIpu, make("label", {}, "number", byNumber)),
    scale, maps, readout, panel,
    make("div", {class: "columns"},
      make("div", {}, heading("How full tiles are"), fullness(limit)),
      make("div", {}, heading("All tiles of an IPU by category"), categoryTable())),
    heading("Variables over the tiles"), variablePlot(wanted.variable),
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

/** What fills the tiles of an IPU in parts: by category, by region of the memory, or by whether it is always held. */
function partsOf(ipu, view) {
  const tiles = report.tiles[ipu], limit = fact("tile_memory_bytes").value;
  const made = (name, numbers) => ({name, fill: COLOUR_OF[name] || "grey", numbers});
  const each = (of) => tiles.tile.map((_, at) => of(at));
  const gap = made("gap", each((at) => tiles.including_gaps[at] - tiles.excluding_gaps[at]));
  if (view === "liveness") return [made("always held", tiles.always), made("comes and goes", each((at) =>
    tiles.excluding_gaps[at] - tiles.always[at])), gap];
  if (view !== "region") return categoriesOf(tiles).map((name) => made(name, tiles.categories[name]));
  return [made("not interleaved", each((at) => tiles.excluding_gaps[at] - behindCode(tiles, at))),
    made("interleaved", each((at) => behindCode(tiles, at) - Math.max(0, tiles.including_gaps[at] - limit))),
    made("beyond the tile", each((at) => Math.max(0, tiles.including_gaps[at] - limit))), gap];
}

/** Bytes in interleaved memory, which begins where code may no longer lie; what gaps there are lie before it. */
function behindCode(tiles, at) { return Math.max(0, tiles.including_gaps[at] - fact("code_region_bytes").value); }

/** Parts that hold something on any IPU, as a legend. */
function partNames(view) {
  return [...new Set(ipus().flatMap((ipu) => partsOf(ipu, view).filter((one) => most(one.numbers)).map((one) =>
    one.name)))];
}

function tileProfile(ipu, chosen, bytesOf, whole, select) {
  const count = report.tiles[ipu].tile.length, limit = fact("tile_memory_bytes").value;
  const parts = partsOf(ipu, chosen.view).filter((one) => one.name !== "gap" || chosen.measure !== "excluding_gaps");
  return tileColumns(`Bytes by tile of ipu${ipu}, by ${chosen.view === "profile" ? "category" : chosen.view}, `
    + "arrow keys move, a click opens a tile", parts, {height: 194, limit, listeners: {
    click: (event) => select(ipu,
      Math.min(count - 1, Math.floor(place(event)[0] / event.currentTarget.clientWidth * count))),
    keydown: (event) => {
      const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (by) { event.preventDefault(); select(ipu, Math.min(count - 1, Math.max(0, chosen.tile + by))); }
    },
  }, mark: (context, width, high, y) => {
    context.strokeStyle = palette.bad;
    context.strokeRect(0, y(limit) + 0.5, width, 0);
    if (chosen.ipu !== ipu) return;
    context.fillStyle = palette.chosen;
    context.fillRect(chosen.tile / count * width, 0, 1.5, high);
  }});
}

function ramp(full) {
  return picture(`Colours from 0 to ${plain(full, "B", brief)}, red beyond`, 34, (context, width) => {
    const wide = Math.min(width, 320);
    for (let x = 0; x < wide; x += 1) { context.fillStyle = rampColour(x / wide); context.fillRect(x, 2, 1.5, 10); }
    context.fillStyle = palette.soft;
    context.fillText("0", 0, 24);
    const text = plain(full, "B", brief);
    context.fillText(text, wide - context.measureText(text).width, 24);
  });
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
