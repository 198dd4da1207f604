// Variables over the tiles: how many bytes of those that are chosen each tile holds.

let lists = 0;

/** A picture of the variables that are chosen, and ways to choose; `number` is that of the first. */
function variablePlot(number = -1) {
  const all = rows("variables").filter((one) => !one.off_chip && one.bytes);
  if (!all.length) return note("The program has no variables on tiles.");
  const largest = (held) => largestOf(all.filter(held), (one) => one.bytes, 2);
  const chosen = number >= 0 ? [rows("variables")[number]] : [...largest((one) => one.always), ...largest((one) =>
    !one.always)];
  const place = make("div", {class: "maps", id: "variable-plot"}), names = make("ul", {class: "legend"});
  const list = `variables-${lists += 1}`, said = make("p", {class: "readout", role: "status"});
  const field = make("input", {type: "search", list, id: `choose-${list}`, change: () => {
    const found = all.find((one) => one.name === field.value);
    said.textContent = found || !field.value ? "" : `No variable on tiles is called ${field.value}.`;
    if (!found || chosen.includes(found)) return;
    chosen.push(found);
    field.value = "";
    arrange();
  }});
  const arrange = () => {
    put(names, chosen.map((one, at) => make("li", {}, make("i", {style: {background:
      `var(--${LINES[at % LINES.length]})`}}), `${one.name}, `, bytes(one.bytes), " ",
      button("Remove", () => { chosen.splice(at, 1); arrange(); }, {class: "link",
        "aria-label": `Remove ${one.name}`}))));
    put(place, [...new Set(chosen.map((one) => one.ipu))].sort((a, b) => a - b).map((ipu) => {
      const series = chosen.map((one, at) => ({one, name: one.name, fill: LINES[at % LINES.length]}))
        .filter(({one}) => one.ipu === ipu).map((part) => ({...part, numbers: bytesByTile(part.one)}));
      return make("figure", {}, tileColumns(`Bytes of ${series.map(({name}) => name).join(", ")} by tile of ipu${ipu}`,
        series), make("figcaption", {}, `ipu${ipu}`));
    }));
    redrawAll();
  };
  arrange();
  return [controls(make("label", {}, "Add a variable", field), make("datalist", {id: list},
    largestOf(all, (one) => one.bytes, 500).map((one) => make("option", {value: one.name})))), said, names, place];
}

function bytesByTile(variable) { return addBytes(tileNumbers(), variable); }

/** Add the bytes of a variable to numbers by tile. */
function addBytes(numbers, variable) {
  for (const share of rowsBy("shares", "variable").get(variable.number) || []) addTo(numbers, share.first_tile,
    share.end_tile, share.bytes);
  return numbers;
}
