// Elements of the page. Names come from the user's program: they are only ever text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: functions among its attributes are listeners, children are elements or text. */
function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for a drawing. */
function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, bound(value));
    else if (name === "style") Object.assign(element.style, value);  // as the policy allows, unlike the attribute
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** A list of names and what belongs to them; what is empty is left out. */
function facts(pairs) {
  const given = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return make("dl", {class: "facts"}, given.map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

/** Put content where other content was; its pictures can be saved. */
function put(place, ...content) {
  place.replaceChildren(...content.flat(3).filter(Boolean));
  offerPictures(place);
}

function button(text, act, attributes = {}) { return make("button", {type: "button", click: act, ...attributes},
  text); }
function code(text) { return make("code", {}, text); }
function controls(...content) { return make("div", {class: "controls"}, content); }

/** A labelled choice; options are texts, or pairs of a value and a text. */
function choice(label, options, chosen, changed) {
  const select = make("select", {change: () => changed(select.value)}, options.map((option) => {
    const [value, text] = Array.isArray(option) ? option : [option, option];
    return make("option", {value, selected: String(value) === String(chosen)}, String(text));
  }));
  return make("label", {}, label, select);
}

/** Content of which one part is seen at a time: pairs of a title and what makes it. */
function tabs(label, parts, first = 0, turned = () => {}) {
  const panel = make("div", {role: "tabpanel", tabindex: 0});
  const heads = parts.map(([title], at) => button(title, () => turn(at), {role: "tab", keydown: (event) => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!by) return;
    event.preventDefault();
    turn((at + by + parts.length) % parts.length);
    heads[(at + by + parts.length) % parts.length].focus();
  }}));
  const turn = (at) => {
    heads.forEach((head, other) => {
      head.setAttribute("aria-selected", at === other);
      head.tabIndex = at === other ? 0 : -1;
    });
    panel.setAttribute("aria-label", parts[at][0]);
    put(panel, parts[at][1]());
    redrawAll();
    turned(at);
  };
  turn(Math.min(first, parts.length - 1));
  return [make("div", {role: "tablist", "aria-label": label, class: "tabs"}, heads), panel];
}

/** A box that is ticked or not, with what it is for. */
function tick(label, ticked, changed) {
  const box = make("input", {type: "checkbox", checked: ticked ? "" : null, change: () => changed(box.checked)});
  return make("label", {}, box, label);
}

/** A legend of colours. */
function legend(pairs) {
  return make("ul", {class: "legend"}, pairs.map(([name, colour]) =>
    make("li", {}, make("i", {style: {background: colour}}), name)));
}

function note(text) { return make("p", {class: "soft"}, text); }
function heading(text) { return make("h3", {}, text); }
