// Small charts as drawings.

function chartWidth() { return Math.min(640, document.documentElement.clientWidth - 32); }

/** Bars of parts, a line for each item: `{name, parts: [[name, amount, colour]], note}`. */
function stackedBars(label, items, whole, show = brief) {
  const width = chartWidth(), left = Math.max(64, 12 + 7 * most(items, (item) => item.name.length)), right = 96,
    height = 26;
  const bars = items.map((item, row) => {
    let x = left;
    const scale = (width - left - right) / (whole || 1);
    const parts = item.parts.filter(([, amount]) => amount > 0).map(([name, amount, colour]) => {
      const bar = shape("rect", {x, y: row * height + 4, width: Math.max(0.5, amount * scale), height: 16,
        fill: colour},
        shape("title", {}, `${item.name} ${name}: ${exact(amount)}`));
      x += amount * scale;
      return bar;
    });
    return [
      shape("text", {x: 0, y: row * height + 17}, item.name), parts,
      shape("text", {x: width - right + 8, y: row * height + 17, class: "axis"}, item.note
        || show(sum(item.parts, (part) => part[1]))),
    ];
  });
  return shape("svg", {viewBox: `0 0 ${width} ${items.length * height + 2}`, width, role: "img", "aria-label": label},
    bars);
}

/** Columns over classes of a value. */
function histogram(label, counts, names) {
  const width = chartWidth(), height = 150, bottom = 22, high = most(counts) || 1, step = width / (counts.length || 1);
  const every = Math.max(1, Math.ceil(counts.length * 60 / width));
  return shape("svg", {viewBox: `0 0 ${width} ${height}`, width, role: "img", "aria-label": label},
    counts.map((count, at) => {
    const tall = (height - bottom - 14) * count / high;
    return [
      shape("rect", {x: at * step + 1, y: height - bottom - tall, width: Math.max(1, step - 2), height: tall,
        fill: "var(--blue)"},
        shape("title", {}, `${names[at]}: ${exact(count)}`)),
      at % every || at * step + 8 * names[at].length > width ? ""
        : shape("text", {x: at * step + 1, y: height - 6, class: "axis"}, names[at]),
    ];
  }));
}
