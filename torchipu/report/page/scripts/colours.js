// What each colour stands for.

const COLOUR_OF = {
  compute: "blue", exchange: "orange", sync: "grey", link: "purple", "all-reduce": "red", host: "green",
  transfer: "teal", idle: "faint", functions: "sky", forward: "blue", backward: "orange", recompute: "sky",
  update: "green", scaling: "red", weights: "blue", "optimiser state": "sky", stashes: "purple",
  "streams and links": "teal", code: "brown", "exchange code": "sand", control: "grey",
  "vertex state": "sky", stacks: "red",
  temporaries: "orange", gap: "faint", "always held": "blue", "comes and goes": "orange", "not interleaved": "blue",
  interleaved: "purple", "beyond the tile": "red",
};
const LINES = ["blue", "orange", "green", "purple", "red", "teal", "brown", "grey"];

/** The name of a colour for drawings and elements, which follow the palette themselves. */
function colourVariable(name) { return `var(--${COLOUR_OF[name] || "grey"})`; }

/** The colours of the palette as canvases need them; read anew after the theme changes. */
let palette = {};
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "card", "line", "ink", "soft", "accent", "bad", "chosen", "ramp-0", "ramp-1", "ramp-2",
    ...LINES,
    "sky", "sand", "faint"];
  palette = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function colour(name) { return palette[COLOUR_OF[name] || "grey"]; }
function lineColour(at) { return palette[LINES[at % LINES.length]]; }

/** A colour of the ramp for a share from 0 to 1; what is beyond is bad. */
function rampColour(share) {
  if (share > 1) return palette.bad;
  const part = Math.max(0, share) * 2, from = part < 1 ? "ramp-0" : "ramp-1", to = part < 1 ? "ramp-1" : "ramp-2";
  const weight = part < 1 ? part : part - 1, [a, b] = [channels(palette[from]), channels(palette[to])];
  return `rgb(${a.map((value, at) => Math.round(value + (b[at] - value) * weight)).join(" ")})`;
}

function channels(text) { return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)); }
