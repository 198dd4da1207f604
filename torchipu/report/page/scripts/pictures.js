// Pictures as files: what a canvas or a drawing shows is saved as it is seen.

/** Put a button behind each picture of a place that saves it. */
function offerPictures(place) {
  for (const drawing of place.querySelectorAll("canvas, svg[aria-label]")) {
    const after = drawing.nextElementSibling;
    if (drawing.closest(".ramp") || after && after.classList.contains("save")) continue;
    const label = drawing.getAttribute("aria-label").split(". ")[0];
    drawing.after(button("Save picture", () => save(drawing, label), {class: "link save",
      "aria-label": `Save picture: ${label}`}));
  }
}

function save(drawing, label) {
  const isCanvas = drawing instanceof HTMLCanvasElement, name = `${report.title} ${label}`.replace(/[^\w .-]+/g, "_");
  const link = make("a", {href: isCanvas ? pixelsOf(drawing) : drawingAsFile(drawing),
    download: `${name}.${isCanvas ? "png" : "svg"}`});
  link.click();
}

/** A canvas on paper: it is transparent itself. */
function pixelsOf(canvas) {
  const copy = make("canvas", {width: canvas.width, height: canvas.height}), context = copy.getContext("2d");
  context.fillStyle = palette.paper;
  context.fillRect(0, 0, copy.width, copy.height);
  context.drawImage(canvas, 0, 0);
  return copy.toDataURL("image/png");
}

/** A drawing with the style of the page written into it. */
function drawingAsFile(drawing) {
  const copy = drawing.cloneNode(true), {width, height} = drawing.getBoundingClientRect();
  const parts = [...drawing.querySelectorAll("*")], copies = [...copy.querySelectorAll("*")];
  [drawing, ...parts].forEach((part, at) => {
    const style = getComputedStyle(part), target = at ? copies[at - 1] : copy;
    for (const name of ["fill", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "font-size",
      "font-family"]) target.setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.prepend(shape("rect", {width: "100%", height: "100%", fill: palette.paper}));
  return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
}
