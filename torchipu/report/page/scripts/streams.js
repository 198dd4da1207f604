// Stream copies: what comes from the host and goes there, and what lies in Streaming Memory, as remote buffers.

function streamCopies() {
  const runs = new Map(rows("functions").map((one) => [one.name, one.runs])), programs = rows("programs");
  const copies = rows("steps").filter((one) => programs[one.program]?.type === "StreamCopyMid");
  return copies.map((one) => {
    const held = (rowsBy("program_variables", "program").get(one.program) || []).map((each) =>
      rows("variables")[each.variable]);
    const times = (runs.get(one.function) || 0) * one.runs;
    return {name: one.name, function: one.function, ipu: programs[one.program].ipu, times,
      kind: held.some((each) => each.off_chip) ? "remote buffer" : "host",
      way: programs[one.program].to_device ? "to the device" : "from the device", bytes: one.exchanged_bytes * times,
      cycles: one.cycles * times, hidden: one.overlaps ? one.cycles * times : 0, operation: one.operation};
  }).filter((one) => one.times);
}

/** Tables of stream copies, by kind and one by one. */
function streamTables() {
  const list = streamCopies();
  if (!list.length) return note("The program has no stream copies.");
  const hertz = fact("clock_hz").value;
  const groups = [...groupBy(list, (one) => `${one.kind}, ${one.way}`)].map(([name, ones]) => ({name,
    copies: sum(ones, (one) => one.times), bytes: sum(ones, (one) => one.bytes), cycles: sum(ones, (one) => one.cycles),
    hidden: sum(ones, (one) => one.hidden)}));
  const sums = [amount("Bytes", "bytes", "B", "exact"), amount("Cycles", "cycles", "cycles"),
    amount("of which beside computation", "hidden", "cycles"),
    {title: "B/s", value: (one) => (one.cycles ? one.bytes / one.cycles * hertz : 0), amount: true,
      show: (one, value) => number(value, {unit: "B/s", show: brief})}];
  return [
    sortable("Stream copies of an iteration", [text("Kind", "name"), amount("Copies", "copies", "", "exact"), ...sums],
      groups, {sort: 2}),
    sortable("Each stream", [text("Stream", "name"), text("Kind", "kind"), text("Goes", "way"),
      text("Function", "function"), text("IPU", "ipu"), amount("Copies", "times", "", "exact"), ...sums], list,
    {sort: 6, first: 10}),
  ];
}
