// A picture of a panel as a file: SVG with its colours written out, or PNG.

const PROPERTIES = ["fill", "stroke", "stroke-width", "opacity", "font-family", "font-size", "text-anchor", "fill-opacity", "visibility", "stroke-dasharray"];

/** @param {SVGSVGElement} drawn @param {string} kind @param {string} name */
export function save(drawn, kind, name) {
  const copy = written(drawn), file = `${name.replace(/[^\w.-]+/g, "-")}.${kind}`;
  const blob = new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
  if (kind === "svg") { offer(blob, file); return; }
  const image = new Image(), address = URL.createObjectURL(blob), scale = 2;
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = scale * image.width; canvas.height = scale * image.height;
    const context = canvas.getContext("2d");
    if (!context) return;
    context.fillStyle = getComputedStyle(document.body).backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((png) => { if (png) offer(png, file); URL.revokeObjectURL(address); });
  };
  image.src = address;
}

/** A copy that needs no style sheet, as large as what is drawn. @param {SVGSVGElement} drawn */
function written(drawn) {
  const copy = /** @type {SVGSVGElement} */ (drawn.cloneNode(true)), from = [drawn, ...drawn.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, at) => {
    const style = getComputedStyle(element);
    to[at].removeAttribute("style"); // it may mix colors of the style sheet, and would come before attributes
    for (const name of PROPERTIES) if (style.getPropertyValue(name)) to[at].setAttribute(name, plain(style.getPropertyValue(name)));
  });
  const inner = drawn.querySelector(":scope > g");
  if (inner && !drawn.hasAttribute("viewBox")) {
    const box = /** @type {SVGGElement} */ (inner).getBBox();
    copy.querySelector(":scope > g")?.removeAttribute("transform");
    copy.setAttribute("viewBox", `${box.x - 8} ${box.y - 8} ${box.width + 16} ${box.height + 16}`);
    copy.setAttribute("width", String(box.width + 16));
    copy.setAttribute("height", String(box.height + 16));
  } else {
    const box = drawn.viewBox.baseVal;
    copy.setAttribute("width", String(box.width));
    copy.setAttribute("height", String(box.height));
  }
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return copy;
}

const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

/** A mixed color as every program reads it; other values as they are. @param {string} value */
function plain(value) {
  if (!pixel || !/^(oklab|color)\(/.test(value)) return value;
  pixel.fillStyle = value;
  pixel.fillRect(0, 0, 1, 1);
  const [red, green, blue] = pixel.getImageData(0, 0, 1, 1).data;
  return `rgb(${red}, ${green}, ${blue})`;
}

/** @param {Blob} blob @param {string} file */
function offer(blob, file) {
  const link = document.createElement("a"), address = URL.createObjectURL(blob);
  link.href = address; link.download = file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
