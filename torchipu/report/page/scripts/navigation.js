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
  const known = pages.get(anchor), section = document.getElementById(anchor);
  known.seen = true;
  put(section.querySelector(".page"), [known.draw(wanted || {})]);
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
