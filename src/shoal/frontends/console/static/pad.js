// A small square of pixels to draw on, with the pointer or the keyboard.

import { freshId, h } from "./dom.js";

/**
 * `changed` is called after every change, `drawn` after every stroke. `full` is the value of a drawn
 * pixel; `values()` throws if its field is not a number.
 */
export function drawingPad(name, side, full, { changed, drawn }) {
  const cells = new Float32Array(side * side);
  const canvas = h("canvas", {
    class: "pad",
    width: side,
    height: side,
    tabindex: "0",
    role: "application",
    "aria-label": `Drawing pad for ${name}, ${side} by ${side}. Arrow keys move, the space bar draws.`,
  });
  const id = freshId("ink");
  const ink = h("input", { id, type: "number", value: full, min: "0", step: "any" });
  let cursor = Math.floor(side / 2) * side + Math.floor(side / 2);
  let down = false;
  const paint = () => {
    const context = canvas.getContext("2d");
    const image = context.createImageData(side, side);
    cells.forEach((level, at) => {
      const shade = Math.round(255 * (1 - level));
      image.data.set([shade, shade, shade, 255], 4 * at);
    });
    if (document.activeElement === canvas && !down) image.data.set([11, 122, 153, 255], 4 * cursor);
    context.putImageData(image, 0, 0);
  };
  const dab = (column, row) => {
    const spread = side > 12 ? 1 : 0.5;
    for (let up = -1; up <= 1; up += 1) {
      for (let left = -1; left <= 1; left += 1) {
        const [x, y] = [column + left, row + up];
        if (x < 0 || y < 0 || x >= side || y >= side) continue;
        const strength = up || left ? (up && left ? 0.15 : 0.4) * spread : 1;
        cells[y * side + x] = Math.max(cells[y * side + x], strength);
      }
    }
  };
  const move = (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * side);
    const row = Math.floor(((event.clientY - box.top) / box.height) * side);
    dab(column, row);
    paint();
  };
  canvas.addEventListener("pointerdown", (event) => {
    down = true;
    canvas.setPointerCapture(event.pointerId);
    move(event);
  });
  canvas.addEventListener("pointermove", (event) => down && move(event));
  canvas.addEventListener("pointerup", () => {
    down = false;
    changed();
    drawn();
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -side, ArrowDown: side }[event.key];
    if (step) cursor = Math.min(side * side - 1, Math.max(0, cursor + step));
    else if (event.key === " ") dab(cursor % side, Math.floor(cursor / side));
    else return;
    event.preventDefault();
    paint();
    changed();
  });
  canvas.addEventListener("focus", paint);
  canvas.addEventListener("blur", paint);
  const clear = h("button", { type: "button", class: "quiet" }, "Clear");
  clear.addEventListener("click", () => {
    cells.fill(0);
    paint();
    changed();
  });
  ink.addEventListener("input", () => changed());
  const beside = h(
    "div",
    { class: "pad-side" },
    h("div", { class: "field short" }, h("label", { for: id }, "Ink"), ink),
    h("p", { class: "hint" }, "Draw here. A drawn pixel has the value of the ink, others are 0."),
    clear,
  );
  paint();
  return {
    side,
    elements: [canvas, beside],
    values() {
      const value = Number(ink.value);
      if (ink.value === "" || !Number.isFinite(value)) {
        throw new Error(`The ink of ${name} is a number such as 1 or 255.`);
      }
      return [...cells].map((level) => Math.round(level * value * 1000) / 1000);
    },
  };
}
