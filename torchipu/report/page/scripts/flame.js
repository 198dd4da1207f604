// Flame graph: which function runs, in it which block, module and op, and below these its steps.

const FLAME = 17;

/** The frames of a function by depth, each from its first step to its last without a break. */
function framesOf(name) {
  return kept(`frames of ${name}`, () => {
    const levels = [];
    for (const step of rowsBy("steps", "function").get(name) || []) {
      const end = step.begin + step.cycles * step.runs;
      if (step.overlaps || end <= step.begin) continue;
      const operation = rows("operations")[step.operation];
      const path = operation ? [operation.block, ...operation.module.split("."), nameOf(operation), step.name]
        : [step.name];
      path.filter(Boolean).reduce((key, part, depth) => addFrame(levels, depth, `${key}/${part}`, part, step, end), "");
    }
    return levels;
  });
}

function addFrame(levels, depth, key, name, step, end) {
  if (!levels[depth]) levels[depth] = {begin: [], end: [], key: [], name: [], operation: []};
  const level = levels[depth], last = level.begin.length - 1;
  if (last >= 0 && level.key[last] === key && level.end[last] === step.begin) level.end[last] = end;
  else {
    level.begin.push(step.begin);
    level.end.push(end);
    level.key.push(key);
    level.name.push(name);
    level.operation.push(step.operation);
  }
  return key;
}

/** A picture of the frames of an IPU that follows a time picture; `chosen(frame)` hears of clicks and keys. */
function flamePicture(view, ipu, chosen) {
  const runs = () => (rowsBy("runs", "ipu").get(ipu()) || []).filter((run) => run.function);
  const deepest = () => most(runs(), (run) => framesOf(run.function).length) + 1;
  let last = null;
  const choose = (frame) => { if (frame) { last = frame; chosen(frame); canvas.redraw(); } };
  const current = () => (last && last.run.ipu === ipu() ? last : null);
  const canvas = picture("Functions, blocks, modules, ops and steps over time. Arrow keys move, Enter opens an op",
    () => deepest() * FLAME + 4, (context, width) => {
    context.fillStyle = palette.soft;
    context.fillText(`ipu${ipu()}`, 0, FLAME / 2);
    let until = 0;
    for (const run of runs()) {
      // What ends within the same pixel as the run before cannot be told from it.
      if (run.end <= view().begin || run.begin >= view().end || view().at(run.end, width) < until + 0.7) continue;
      until = view().at(run.end, width);
      const whole = {begin: [0], end: [run.end - run.begin], name: [run.action]};
      const levels = [whole, ...framesOf(run.function)];
      levels.forEach((level, depth) => paintFrames(context, view(), width, run, level, depth));
    }
    const found = current();
    if (found) frame(context, view(), width, found.begin, found.end, found.depth * FLAME);
  }, {
    click: (event) => {
      const [x, y] = place(event), time = view().begin + (x - view().left) / (canvas.clientWidth - view().left)
        * (view().end - view().begin);
      choose(frameAt(runs(), time, Math.floor(y / FLAME)));
    },
    keydown: (event) => {
      const found = current();
      if (event.key === "Enter" && found && found.operation >= 0) return openOperation(found.operation);
      const move = {ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0]}[event.key];
      if (!move) return;
      event.preventDefault();
      choose(found ? besideFrame(runs(), found, ...move) : frameAt(runs(), Math.max(view().begin, runs()[0].begin), 0));
    },
  });
  return canvas;
}

function paintFrames(context, view, width, run, {begin, end, name}, depth) {
  const high = FLAME - 1, y = depth * FLAME, perPixel = (view.end - view.begin) / (width - view.left);
  for (let at = after(end, view.begin - run.begin); at < begin.length && run.begin + begin[at] < view.end;) {
    const from = Math.max(view.left, view.at(run.begin + begin[at], width)),
      to = Math.min(width, view.at(run.begin + end[at], width));
    context.fillStyle = depth ? palette[LINES[hashed(name[at]) % LINES.length]] : colour(run.kind);
    context.fillRect(from, y, Math.max(0.6, to - from - 0.5), high);
    context.fillStyle = "#fff";
    fitted(context, name[at], from, to, y + high / 2);
    // What ends within this pixel cannot be seen.
    at = Math.max(at + 1, after(end, view.begin - run.begin + (Math.max(to, from + 1) - view.left) * perPixel));
  }
}

/** A number that is the same for the same name. */
function hashed(name) { return [...name].reduce((value, letter) => (value * 31 + letter.charCodeAt(0)) % 65521, 7); }

/** The frame at a time and a depth; above it where nothing is so deep. */
function frameAt(runs, time, depth) {
  const run = runs.find((one) => one.begin <= time && time < one.end);
  if (!run) return null;
  for (let deep = depth; deep > 0; deep -= 1) {
    const level = framesOf(run.function)[deep - 1], at = level ? after(level.end, time - run.begin) : 0;
    if (level && at < level.begin.length && level.begin[at] <= time - run.begin) return {run, depth: deep, at,
      name: level.name[at], operation: level.operation[at], begin: run.begin + level.begin[at],
      end: run.begin + level.end[at], path: level.key[at]};
  }
  return {run, depth: 0, at: 0, name: run.action, operation: -1, begin: run.begin, end: run.end, path: ""};
}

/** The frame that keys lead to: above, below, before or behind one. */
function besideFrame(runs, found, along, down) {
  if (down) return frameAt(runs, found.begin, Math.max(0, found.depth + down));
  const levels = framesOf(found.run.function), level = found.depth ? levels[found.depth - 1] : null;
  const at = found.at + along;
  if (level && at >= 0 && at < level.begin.length) return frameAt(runs, found.run.begin + level.begin[at], found.depth);
  const next = runs[runs.indexOf(found.run) + along];
  return next ? frameAt(runs, along > 0 ? next.begin : next.end - 1, found.depth) : null;
}

/** What is told of a frame. */
function framePanel(found, zoom) {
  const isOp = found.operation >= 0 && found.path.includes(nameOf(rows("operations")[found.operation]));
  return [heading(found.name), facts([["In", [found.run.action, found.path.split("/").slice(1, -1).join(" › ")]
    .filter(Boolean).join(" › ")], ["Begins at", number(found.begin, {unit: "cycles"})],
    ["Cycles", number(found.end - found.begin, {unit: "cycles"})], ["Of the run", percent((found.end - found.begin)
      / (found.run.end - found.run.begin))], ...(isOp ? about(rows("operations")[found.operation]) : [])]),
  controls(button("Zoom to it", () => zoom(found.begin, found.end)))];
}
