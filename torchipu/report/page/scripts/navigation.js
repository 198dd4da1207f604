// Pages: each draws itself when it is first seen. The anchor in the address says which one is.

const pages = new Map();

/** Say how a page is drawn: `draw(wanted)` returns its elements, `wanted` being what another page asks for. */
function page(anchor, draw) { pages.set(anchor, {draw, seen: false}); }

/** Go to a page; with something that it should show, it is drawn anew. */
function go(anchor, wanted = null) {
  if (wanted) { drawPage(anchor, wanted); }
  if (location.hash === `#${anchor}`) turn(); else location.hash = anchor;
}

function drawPage(anchor, wanted) {
  const page = pages.get(anchor), place = document.getElementById(anchor).querySelector(".page"), asked = report;
  page.seen = true;
  if (anchor === "compare") return put(place, within(first, () => [page.draw({})]));
  const drawn = shown.map((one) => within(one, () => [page.draw(wanted && one === asked ? wanted : {})]));
  if (drawn.length === 1) return put(place, drawn[0]);
  put(place, make("div", {class: "beside"}, drawn.map((content, at) => make("div", {class: "report"},
    make("p", {class: "which"}, shown[at].title), content))));
}

/** The report of this page, and those that are shown: it or another one, or both beside each other. */
let first = null, shown = [];

/** The name of a part of a page, which two reports have beside each other. */
function labelled(name) { return shown.length > 1 ? `${name}, ${report.title}` : name; }

/** Draw all pages anew, as they are seen. */
function drawAnew() {
  for (const page of pages.values()) page.seen = false;
  turn();
}

/** Show the page that the address names. */
function turn() {
  const anchor = location.hash.slice(1) || "overview";
  if (!pages.has(anchor)) return;  // such as the content that a skip link names
  for (const name of pages.keys()) document.getElementById(name).hidden = name !== anchor;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${anchor}`) { link.setAttribute("aria-current", "page"); link.scrollIntoView({block: "nearest",
      inline: "nearest"}); }
    else link.removeAttribute("aria-current");
  }
  if (!pages.get(anchor).seen) drawPage(anchor);
  redrawAll();
  window.scrollTo(0, 0);
}

/** Use the theme of the system, or the one that was chosen. */
function setTheme(wanted) {
  const dark = wanted === "dark" || wanted === "auto" && matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  readPalette();
  redrawAll();
}
