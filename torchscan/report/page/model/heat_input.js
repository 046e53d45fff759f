// The pointer and the keyboard on the rows of the heat map.

/** @typedef {import("./layers_heat.js").LayersHeat} LayersHeat */

/** @param {LayersHeat} heat */
export function listenToHeat(heat) {
  heat.list.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => move(heat, event));
  heat.list.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const row = rowAt(event);
    if (row === null) return;
    heat.focus(row);
    heat.choose(row);
  });
  heat.list.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => press(heat, event));
}

/** @param {Event} event */
function rowAt(event) {
  const element = /** @type {Element} */ (event.target).closest("[data-row]");
  return element ? Number(element.getAttribute("data-row")) : null;
}

/** @param {LayersHeat} heat @param {PointerEvent} event */
function move({ host, range: [from, to], frame, scale, view }, event) {
  const row = rowAt(event);
  if (row === null) return;
  const x = event.clientX - host.getBoundingClientRect().left;
  view.pointed = row;
  const isOnCells = x >= frame.left && x <= frame.right;
  view.point(isOnCells ? Math.min(to, Math.max(from, Math.floor(scale.step(x)))) : view.cross);
}

/** @param {LayersHeat} heat @param {KeyboardEvent} event */
function press(heat, event) {
  const row = rowAt(event);
  if (row === null) return;
  const { rows, view } = heat;
  const { hasInner, parent } = view.arrays.rows[row];
  const isOpen = rows.opened.has(row);
  const next = rows.neighbor(row, event.key);
  if (event.shiftKey && event.key.startsWith("Arrow")) { view.pressArrow(event); return; }
  if (next !== undefined) heat.focus(next);
  else if (event.key === "ArrowRight" && hasInner && !isOpen) heat.toggle(row);
  else if (event.key === "ArrowLeft" && hasInner && isOpen) heat.toggle(row);
  else if (event.key === "ArrowLeft" && parent !== null && rows.seen.includes(parent)) heat.focus(parent);
  else if (event.key === "Enter" || event.key === " ") heat.choose(row);
  else return;
  event.preventDefault();
}
