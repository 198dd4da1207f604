// Overview: whether it fits, how fast it is, what to change first.

page("overview", () => {
  const found = report.summary, limit = found.tile_memory_bytes, total = sum(rows("operations"), (one) => one.cycles)
    || 1;
  const figure = (name, options = {}) => {
    const {value, unit, confidence} = {...fact(name), ...(fact(name).value === null
      ? {value: found[name], confidence: "modelled"} : {})};
    return number(value, {unit: options.unit ?? unit, confidence: options.confidence || confidence, show: brief,
      ...options});
  };
  const kinds = groupBy(rows("compile"), (one) => one.kind);
  const fill = fact("pipeline_fill").value;
  const counts = kinds.size ? ["graph break", "eager frame", "recompilation"].map((kind) =>
    [`${kind[0].toUpperCase()}${kind.slice(1)}s`, number((kinds.get(kind) || []).length, {confidence: "exact"})]) : [];
  return [
    make("p", {id: "verdict", class: found.fits ? "good" : "bad"}, found.fits ? "It fits: every tile has room." :
      `It does not fit: the fullest tile lacks ${plain(found.fullest_tile_bytes - limit, "B")}.`),
    make("dl", {class: "cards"},
      card(found.is_training ? "Weight update" : "Inference run", "execution", figure("cycles_per_update"),
        [exact(found.cycles_per_update), " cycles, ", exact(found.microseconds_per_update), " µs"]),
      card("Throughput", "what-if", figure("samples_per_second"),
        [`${found.micro_batches} × ${found.micro_batch_size} samples an iteration, `,
          `on ${found.replicas} × ${found.num_ipus} IPUs`]),
      card("Fullest tile", "memory", figure("fullest_tile_bytes", {unit: "B"}),
        `${plain(found.fullest_tile_bytes, "B")} of ${plain(limit, "B")}, `
          + percent(found.fullest_tile_bytes / limit).replace(" ", "\u00a0")),
      card("Pipeline bubble", "pipeline", number(1 - fill, {show: percent}), fill === 1 ? "no pipeline to fill"
        : "of pipeline cycles, to fill and to empty"),
      card("Arithmetic", "operations", figure("flops_per_update", {unit: "FLOP", confidence: "exact"}),
        [number(found.microseconds_per_update ? found.flops_per_update / found.microseconds_per_update * 1e6 : 0,
          {unit: "FLOP/s", show: brief}), " a replica"]),
      card("Operations", "operations", figure("operations", {confidence: "exact"}),
        [number(found.generic_operations, {confidence: "exact"}), " without a record: estimates"])),
    counts.length ? facts(counts) : "",
    heading("What to change first"), adviceList(rows("advice").slice(0, 5)), rows("alternatives").length
      ? jump("What-if: the nearest alternatives", "what-if") : "", " ",
    jump("Insights: the fullest tiles, the largest parts", "insights"),
    make("div", {class: "columns"},
      make("div", {}, heading("Where the cycles go"), ...cyclesByIpu()),
      make("div", {}, heading("The fullest tile of each IPU"), stackedBars("Fullest tile by IPU", ipus().map((ipu) => {
        const tiles = report.tiles[ipu], full = most(tiles.including_gaps), at = tiles.including_gaps.indexOf(full);
        return {name: `ipu${ipu}`, parts: categoriesOf(tiles).map((name) => [name, tiles.categories[name][at],
          colourVariable(name)]), note: percent(full / limit)};
      }), Math.max(limit, found.fullest_tile_bytes)),
        legend(allCategories().map((name) => [name, colourVariable(name)])))),
    sortable("Operations that take most", [
      ...OPERATION,
      amount("Cycles", "cycles", "cycles"),
      {title: "Share", value: (one) => one.cycles, show: (one) => shareBar(one.cycles / total)},
    ], [...rows("operations")].sort((a, b) => b.cycles - a.cycles).slice(0, 8), {operation: (one) => one.number}),
    make("ul", {class: "legend"}, CONFIDENCES.map((words) => make("li", {}, words.join(" ")))),
    note("Any row that is about an op opens the line that wrote it."),
  ];
});

function cyclesByIpu() {
  const spent = fact("cycles_by_category_by_ipu").value, names = [...new Set(spent.flatMap(Object.keys))];
  return [
    stackedBars("Cycles by IPU and what they are for", spent.map((one, ipu) => ({
      name: `ipu${ipu}`, parts: names.map((name) => [name, one[name] || 0, colourVariable(name)]),
      note: `${percent(fact("efficiency_by_ipu").value[ipu])} busy`,
    })), most(spent, (one) => sum(Object.values(one)))),
    legend(names.map((name) => [name, colourVariable(name)])),
  ];
}

/** Advice with evidence, the option to set, and the user's line. */
function adviceList(list) {
  if (!list.length) {
    return wasAdvised() ? [note(fact("what_if_left_out").value?.length ? "Nothing that was tried would be better."
      : "Nothing stands out."), leftOut()] : note("This report was written without advice.");
  }
  return [...list.map((one) => make("div", {class: "advice"},
    make("p", {}, make("strong", {}, one.finding)), make("p", {}, one.remedy, " ", one.option && code(one.option)),
    make("p", {class: "soft"}, one.gain && `The model predicts: ${one.gain} `, one.file
      && code(`${one.file}:${one.line}`), " ", operationsOfLine(one)))), leftOut()];
}

function operationsOfLine(where) {
  const found = where.file ? rows("operations").find((one) => one.file === where.file && one.line === where.line)
    : null;
  return found ? opener(found) : "";
}
