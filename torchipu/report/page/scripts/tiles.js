// Tiles over time: what each tile of an IPU does in the steps that are in view, once they are wide enough to be seen.

const MOST_IN_VIEW = 1500;

/**
 * A picture of tiles that follows a time picture.
 *
 * `view()` is its part of the time, `ipu()` whose tiles; `chosen(found, tile)` hears of clicks, `near()` shows a step.
 */
function tilePicture(view, ipu, chosen, near) {
  const count = fact("num_tiles").value, range = {from: 0, to: count - 1}, high = 300, top = 4;
  const row = (tile) => top + (tile - range.from) / (range.to - range.from + 1) * (high - 2 * top);
  const words = make("p", {class: "soft", role: "status"});
  const canvas = picture("What each tile does in the steps that are in view",
    () => (stepsInView(view(), ipu()) ? high : 1), (context, width) => {
    const found = stepsInView(view(), ipu());
    words.textContent = found ? `Tiles ${range.from} to ${range.to} of ipu${ipu()}, the first on top: what is faint `
      + "waits for the slowest tile. Choose a tile in a step to see its cycles."
      : `There are too many steps of ipu${ipu()} in view to tell its tiles apart: zoom in.`;
    if (!found) return;
    context.fillStyle = palette.soft;
    context.fillText(`tile ${range.from}`, 0, top + 6);
    context.fillText(`${range.to}`, 0, high - top - 6);
    for (const one of found) paintTiles(context, view(), width, one, row, range);
  }, {
    click: (event) => {
      const [x, y] = place(event), time = view().begin + (x - view().left) / (canvas.clientWidth - view().left)
        * (view().end - view().begin);
      const found = (stepsInView(view(), ipu()) || []).find(({from, to}) => from <= time && time < to);
      const tile = range.from + Math.floor((y - top) / (high - 2 * top) * (range.to - range.from + 1));
      if (found) chosen(found, Math.min(range.to, Math.max(range.from, tile)));
    },
    keydown: (event) => {  // tiles up and down, as time runs left and right
      const by = {ArrowUp: -1, ArrowDown: 1}[event.key], wide = range.to - range.from + 1;
      if (!by) return;
      event.preventDefault();
      show(range.from + by * Math.ceil(wide / 4), wide);
    },
  });
  const show = (from, wide) => {
    range.from = Math.max(0, Math.min(count - wide, Math.round(from)));
    range.to = Math.min(count - 1, range.from + wide - 1);
    canvas.redraw();
  };
  const size = choice("Tiles", [[count, "all"], 256, 64, 16].filter((one) => Array.isArray(one) || one < count), count,
    (value) => show(range.from, Number(value)));
  const first = make("input", {type: "number", min: 0, max: count - 1, value: 0, input: () =>
    show(Number(first.value), range.to - range.from + 1)});
  return {canvas, elements: [controls(button("Zoom to the longest step", near), size, make("label", {}, "from tile",
    first)), canvas, words]};
}

/** The steps of an IPU between two times, with when they run; null where they are too many. */
function stepsInView(view, ipu) {
  const found = [];
  for (const run of rowsBy("runs", "ipu").get(ipu) || []) {
    if (!run.function || run.end <= view.begin || run.begin >= view.end) continue;
    for (const step of rowsBy("steps", "function").get(run.function) || []) {
      const from = run.begin + step.begin, to = from + step.cycles * step.runs;
      if (step.overlaps || to <= view.begin || from >= view.end || to === from) continue;
      if (found.length >= MOST_IN_VIEW) return null;
      found.push({run, step, from, to});
    }
  }
  return found;
}

/** A step: tiles that compute until each is done, all others for as long as the step takes. */
function paintTiles(context, view, width, {step, from, to}, row, range) {
  const x = (time) => Math.min(width, Math.max(view.left, view.at(time, width))), begin = x(from);
  const box = (until, first, end) => context.fillRect(begin, row(first), Math.max(0.6, x(until) - begin),
    Math.max(0.6, row(end) - row(first)));
  context.fillStyle = step.vertices ? palette.faint : colour(step.category);
  box(to, range.from, range.to + 1);
  context.fillStyle = colour("compute");
  for (const part of patternOf(step)) {
    const first = Math.max(range.from, part.first_tile), end = Math.min(range.to + 1, part.end_tile);
    if (first < end) box(from + part.value * step.runs, first, end);
  }
}

/** The cycles of a step on its tiles, tiles with as many together. */
function patternOf(step) {
  return step && step.cycles_by_tile >= 0 ? rowsBy("patterns", "pattern").get(step.cycles_by_tile) || [] : [];
}

function cyclesOnTile(step, tile) {
  return (patternOf(step).find((one) => one.first_tile <= tile && tile < one.end_tile) || {value: 0}).value;
}
