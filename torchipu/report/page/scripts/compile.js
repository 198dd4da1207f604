// Compile: passes and captures with their time, recompilations with their reasons, graph breaks, eager frames.

page("compile", () => {
  const list = rows("compile");
  if (!list.length) return note("The compilation was not watched: torchipu report script.py does so.");
  return [...groupBy(list, (one) => one.kind)].map(([kind, ones]) => sortable(kind, [
    text("Name", "name"), {title: "Milliseconds", value: (one) => one.milliseconds, amount: true,
      show: (one) => (one.milliseconds ? number(one.milliseconds, {confidence: "measured"}) : "–")},
    {title: "Detail", value: (one) => one.detail, show: (one) => make("span", {class: "code"}, one.detail)}], ones));
});
