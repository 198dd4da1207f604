// Numbers by tile: patterns of the report as lists, and pictures of them.

/** The number of each pattern on a tile, of those that are not 0 there. */
function patternsAt(tile) {
  return new Map(rows("patterns").filter((one) => one.first_tile <= tile && tile < one.end_tile)
    .map((one) => [one.pattern, one.value]));
}

/** On how many tiles a pattern is not 0. */
function tilesOf(pattern) {
  return sum(rowsBy("patterns", "pattern").get(pattern) || [], (one) => one.end_tile - one.first_tile);
}

function tileNumbers() { return new Float64Array(fact("num_tiles").value); }

/** Add a number to those of tiles that follow each other. */
function addTo(numbers, first, end, value) { for (let tile = first; tile < end; tile += 1) numbers[tile] += value; }

/** Columns over tiles, those of several `{name, fill, numbers}` on top of each other; `fill` names a colour. */
function tileColumns(label, series, {unit = "B", height = 110, limit = 0, listeners = {}, mark = () => {}} = {}) {
  const count = most(series, (one) => one.numbers.length);
  const totals = Array.from({length: count}, (_, tile) => sum(series, (one) => one.numbers[tile] || 0));
  const high = Math.max(limit, most(totals)) || 1, top = 14;
  return picture(`${label}. At most ${plain(most(totals), unit)} on a tile`, height, (context, width, tall) => {
    const base = new Float64Array(count);
    for (const {fill, numbers} of series) {
      context.fillStyle = palette[fill];
      numbers.forEach((amount, tile) => {
        const y = tall - (base[tile] + amount) / high * (tall - top);
        if (amount) context.fillRect(tile / count * width, y, Math.max(0.7, width / count + 0.3),
          amount / high * (tall - top));
        base[tile] += amount;
      });
    }
    context.fillStyle = palette.soft;
    context.fillText(plain(high, unit, brief), 0, 6);
    const words = `${exact(count)} tiles`;
    context.fillText(words, width - context.measureText(words).width, 6);
    mark(context, width, tall, (amount) => tall - amount / high * (tall - top));
  }, listeners);
}
