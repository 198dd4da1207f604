// Begins: reads the data, shows the page that the address names, and says that it is ready.

async function start() {
  report = await decoded(document.getElementById("data").textContent);
  document.getElementById("plain").remove();
  document.documentElement.classList.add("ready");
  const found = report.summary;
  const replicas = found.replicas > 1 ? `${found.replicas} replicas of ` : "";
  const machines = found.num_ipus > 1 ? "IPUs" : "IPU";
  document.getElementById("subtitle").textContent = `${found.program} on ${found.title}: ${replicas}${found.num_ipus} `
    + `${machines} with ${exact(found.num_tiles)} tiles each`;
  shown = [first = report];
  const settings = make("div", {class: "settings"}, searchField(), make("span", {id: "which"}),
    ...Object.entries(UNITS).map(([unit, all]) => choice(unit === "B" ? "Memory in" : "Time in", Object.keys(all), unit,
      (value) => { inUse[unit] = value; drawAnew(); })), choice("Theme", ["auto", "light", "dark"], "auto",
    (value) => { theme = value; setTheme(value); }));
  document.querySelector("header").append(settings);
  if (report.other) offerBoth(report.other);
  setTheme(theme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(theme));
  addEventListener("hashchange", turn);
  addEventListener("beforeprint", () => {  // all pages, as on paper
    setTheme("light");
    for (const [anchor, known] of pages) {
      document.getElementById(anchor).hidden = false;
      if (!known.seen) drawPage(anchor);
    }
    redrawAll();
  });
  addEventListener("afterprint", () => { setTheme(theme); turn(); });
  turn();
  document.documentElement.dataset.ready = "yes";
}

let theme = "auto";
start();
