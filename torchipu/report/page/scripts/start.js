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
  document.querySelector("header").append(choice("Theme", ["auto", "light", "dark"], "auto",
    (value) => { theme = value; setTheme(value); }));
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
