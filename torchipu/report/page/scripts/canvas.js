// Pictures with many parts: canvases that follow the width of the page and the theme, and a time axis that zooms.

const drawn = new Set();

/** Make a canvas that `paint(context, width, height)` fills; `height` may depend on the width. */
function picture(label, height, paint, listeners = {}) {
  const canvas = make("canvas", {role: Object.keys(listeners).length ? "application" : "img", "aria-label": label,
    tabindex: Object.keys(listeners).length ? 0 : null, ...listeners});
  const redraw = bound(() => {
    const wide = canvas.clientWidth;
    if (!wide) return;
    const high = typeof height === "function" ? height(wide) : height, dense = devicePixelRatio || 1;
    canvas.width = Math.round(wide * dense);
    canvas.height = Math.round(high * dense);
    canvas.style.height = `${high}px`;
    const context = canvas.getContext("2d");
    context.scale(dense, dense);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    paint(context, wide, high);
  });
  canvas.redraw = redraw;
  drawn.add(canvas);
  new ResizeObserver(redraw).observe(canvas);
  return canvas;
}

/** Draw all canvases again that are to be seen. */
function redrawAll() {
  for (const canvas of drawn) if (canvas.isConnected) canvas.redraw(); else drawn.delete(canvas);
}

/** Where a pointer is in a canvas. */
function place(event) {
  const box = event.currentTarget.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

/**
 * A picture over time that zooms with the wheel, buttons and keys, and pans when dragged.
 *
 * `paint(context, view, width)` draws what lies from `view.begin` to `view.end`; `left` pixels are for names.
 * `chosen(time, y)` hears of clicks.
 */
function timePicture(label, whole, {left, height, paint, chosen, keys = {}, unit = "cycles"}) {
  const view = {begin: 0, end: whole, left, at: (time, width) => left
    + (time - view.begin) / (view.end - view.begin) * (width - left)};
  let grabbed = null, moved = false;
  const timeAt = (x) => view.begin + (x - left) / (canvas.clientWidth - left) * (view.end - view.begin);
  const show = (begin, end) => {
    const wide = Math.min(whole, Math.max(20, end - begin));
    view.begin = Math.min(Math.max(0, begin), whole - wide);
    view.end = view.begin + wide;
    canvas.redraw();
  };
  const zoom = (factor, middle = (view.begin + view.end) / 2) =>
    show(middle - (middle - view.begin) * factor, middle + (view.end - middle) * factor);
  const pan = (share) => { const by = share * (view.end - view.begin); show(view.begin + by, view.end + by); };
  const moves = {"+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => show(0, whole),
    earlier: () => pan(-0.2), later: () => pan(0.2)};
  Object.assign(moves, {ArrowLeft: moves.earlier, ArrowRight: moves.later}, keys);
  const canvas = picture(`${label}. Keys: plus and minus zoom, left and right move, 0 shows all`, height,
    (context, width) => { paint(context, view, width); timeAxis(context, view, width, unit); }, {
      wheel: (event) => { if (event.ctrlKey || event.shiftKey
        || event.altKey) { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(place(event)[0])); } },
      keydown: (event) => { const move = moves[event.key]; if (move) { event.preventDefault(); move(); } },
      pointerdown: (event) => { grabbed = {x: place(event)[0], begin: view.begin, end: view.end}; moved = false; },
      pointermove: (event) => {
        if (!grabbed || !event.buttons) return;
        const by = (grabbed.x - place(event)[0]) / (canvas.clientWidth - left) * (grabbed.end - grabbed.begin);
        if (Math.abs(grabbed.x - place(event)[0]) > 3) moved = true;
        if (moved) show(grabbed.begin + by, grabbed.end + by);
      },
      pointerup: (event) => { grabbed = null; if (!moved) chosen(timeAt(place(event)[0]), place(event)[1], view); },
      dblclick: (event) => zoom(0.25, timeAt(place(event)[0])),
    });
  const signs = {"+": ["Zoom in", "+"], "−": ["Zoom out", "-"], "◂": ["Earlier", "earlier"],
    "▸": ["Later", "later"],
    All: ["Show all", 0]};
  const buttons = Object.entries(signs).map(([sign, [name, key]]) => button(sign, moves[key],
    {"aria-label": name, title: name}));
  return {canvas, buttons, show, view};
}

/** Times along the top: where the view begins, and how much later from there on. */
function timeAxis(context, view, width, unit) {
  context.fillStyle = palette.soft;
  const count = Math.max(2, Math.floor((width - view.left) / 140));
  for (let at = 0; at < count; at += 1) {
    const later = (view.end - view.begin) * at / count;
    const words = at && view.begin ? `+${briefly(Math.round(later), unit)}`
      : plain(Math.round(view.begin + later), unit);
    context.fillText(words, view.at(view.begin + later, width) + 2, 8);
  }
}

/** Fill slices of ascending begins and ends, at most one a pixel; `offset` is added to their times. */
function fillSlices(context, view, width, begins, ends, offset, y, high) {
  const perPixel = (view.end - view.begin) / (width - view.left);
  let at = after(ends, view.begin - offset);
  while (at < begins.length && begins[at] + offset < view.end) {
    const from = Math.max(view.left, view.at(begins[at] + offset, width)),
      to = Math.min(width, view.at(ends[at] + offset, width));
    context.fillRect(from, y, Math.max(0.7, to - from - (to - from > 4 ? 0.5 : 0)), high);
    // What ends within this pixel cannot be seen.
    at = Math.max(at + 1, after(ends, view.begin - offset + (Math.max(to, from + 1) - view.left) * perPixel));
  }
}

/** Text that fits between two places, or none. */
function fitted(context, text, from, to, y) {
  if (to - from > 14 && context.measureText(text).width < to - from - 6) context.fillText(text, from + 3, y);
}
