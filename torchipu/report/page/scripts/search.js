// Search: everything that has a name, from anywhere in the page.

const MOST_FOUND = 6;

/** All that can be found: its kind, its name, what else is known of it, and what opens it. */
function searchIndex() {
  return kept("index", () => {
    const found = [];
    const add = (kind, name, more, open) => {
      const details = more.filter(Boolean).join(" ");
      found.push({kind, name, details, words: `${name} ${details}`.toLowerCase(), open});
    };
    for (const link of document.querySelectorAll("nav a")) add("Page", link.textContent, [], () =>
      go(link.hash.slice(1)));
    for (const one of rows("operations")) add("Operation", nameOf(one), [one.module, lineOf(one), one.code, one.target],
      () => openOperation(one.number));
    for (const name of new Set(rows("operations").map((one) => one.module).filter(Boolean))) add("Module", name, [],
      () => go("operations", {text: name, by: "module"}));
    for (const one of rows("variables")) add("Variable", one.name, [`${one.dtype}[${one.shape}]`, one.role],
      () => go("memory", {variable: one.number}));
    for (const one of rows("programs")) if (one.parent >= 0 || one.name) add("Program", one.name, [one.type], () =>
      openProgram(one.number));
    for (const name of new Set(rows("codelets").map((one) => one.codelet))) add("Codelet", name, [],
      () => go("program", {text: name}));
    for (const one of rows("advice")) add("Advice", one.finding, [one.remedy, one.option], () => go("overview"));
    for (const one of rows("settings")) add("Setting", one.name, [one.value], () => go("environment",
      {text: one.name}));
    for (const one of rows("facts")) add("Figure", one.name, [one.value.slice(0, 80)], () => go("environment",
      {text: one.name}));
    for (const one of rows("numerics")) add("Numerics", one.tensor, [], () => go("numerics"));
    for (const one of rows("host")) add("Host", one.name, [one.kind], () => go("host"));
    for (const one of rows("compile")) add("Compile", one.name, [one.kind, one.detail], () => go("compile"));
    return found;
  });
}

/** What holds all words, names that begin with the text first. */
function foundFor(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const list = searchIndex().filter((one) => words.every((word) => one.words.includes(word)));
  return list.sort((a, b) => b.name.toLowerCase().startsWith(words[0]) - a.name.toLowerCase().startsWith(words[0]));
}

/** The field, and below it what is found. */
function searchField() {
  const place = make("div", {id: "found", class: "found", hidden: "", role: "region", "aria-label": "Found"});
  const close = () => { place.hidden = true; };
  const seek = () => within(shown[0], () => {
    const list = foundFor(field.value);
    place.hidden = !field.value.trim();
    put(place, list.length ? [...groupBy(list, (one) => one.kind)].map(([kind, ones]) => [
      make("p", {class: "soft"}, `${kind}: ${exact(ones.length)}`),
      make("ul", {}, ones.slice(0, MOST_FOUND).map((one) => make("li", {}, button([make("strong", {}, one.name), " ",
        make("span", {class: "soft"}, one.details.slice(0, 90))], () => { close(); one.open(); }, {class: "link"})))),
      ones.length > MOST_FOUND ? note(`and ${exact(ones.length - MOST_FOUND)} more`) : "",
    ]) : note("Nothing has this in its name."));
  });
  const field = make("input", {type: "search", id: "search", placeholder: "Search ( / )",
    "aria-label": "Search everything", input: seek, focus: () => { if (field.value) seek(); }});
  const whole = make("div", {class: "search", keydown: (event) => {
    if (event.key === "Escape") { close(); field.focus(); }
    const results = [...place.querySelectorAll("button")], at = results.indexOf(document.activeElement);
    const by = {ArrowDown: 1, ArrowUp: -1}[event.key];
    if (by) { event.preventDefault(); (results[at + by] || (by < 0 ? field : results[at]) || field).focus(); }
    if (event.key === "Enter" && event.target === field && results.length) results[0].click();
  }}, field, place);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)
      || document.getElementById("details").open) return;
    event.preventDefault();
    field.focus();
  });
  document.addEventListener("click", (event) => { if (!whole.contains(event.target)) close(); });
  return whole;
}
