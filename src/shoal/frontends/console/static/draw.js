// Renders outputs by their kind: labels as bars, texts as text, matrices as heat maps, images as
// images, and everything else as a table.

import { freshId, h, setText } from "./dom.js";
import { element, shape as shapeText } from "./format.js";
import { size } from "./tensors.js";

const MOST_ROWS = 24;
const MOST_COLUMNS = 16;
const MOST_BARS = 10;
// From dark to light, for print and colour-blind users.
const SCALE = [
  [17, 34, 64],
  [24, 78, 119],
  [22, 126, 138],
  [66, 171, 130],
  [158, 208, 104],
  [250, 231, 120],
];

/** An output: its name, type and shape, and its values. */
export function drawOutput(output) {
  return h(
    "section",
    { class: "output" },
    h(
      "h3",
      {},
      output.name,
      " ",
      h(
        "small",
        {},
        output.classes ? "top classes" : `${output.datatype} ${shapeText(output.shape)}`,
      ),
    ),
    drawn(output),
  );
}

function drawn(output) {
  const { datatype, values, shape } = output;
  if (!values.length) return h("p", { class: "empty" }, "This output has no elements.");
  if (output.classes) return classes(values, shape);
  if (datatype === "BYTES") return texts(values);
  const dims = squeezed(shape);
  if (values.length === 1) return h("p", { class: "single" }, element(values[0]));
  if (isPicture(dims)) return withTable(picture(output, dims), output, dims);
  if (dims.length === 2 && dims[0] > 3 && dims[1] > 3)
    return withTable(heatMap(values, dims, output.name), output, dims);
  if (dims.length === 1 && isDistribution(values))
    return withTable(distribution(values), output, dims);
  return table(values, dims);
}

/** A shape without leading ones, such as a batch of one. */
export function squeezed(shape) {
  const dims = [...shape];
  while (dims.length > 1 && dims[0] === 1) dims.shift();
  return dims;
}

/** Numbers from 0 to 1 whose sum is 1. */
export function isDistribution(values) {
  if (values.length < 2 || values.some((value) => !(value >= 0 && value <= 1))) return false;
  return Math.abs(values.reduce((sum, value) => sum + value, 0) - 1) < 0.01;
}

function isPicture(dims) {
  if (dims.length !== 3) return false;
  const [first, second, third] = dims;
  return (
    ([1, 3].includes(first) && second >= 8 && third >= 8) ||
    ([1, 3].includes(third) && first >= 8 && second >= 8)
  );
}

// ---- labels

/** `0.97:3:three`, as the classification extension writes it. */
export function parseClass(text) {
  const [score, index, ...label] = text.split(":");
  return { score: Number(score), index: Number(index), label: label.join(":") };
}

function classes(values, shape) {
  const rows = shape.length > 1 ? size(shape.slice(0, -1)) : 1;
  const each = values.length / rows;
  return h(
    "div",
    {},
    Array.from({ length: Math.min(rows, MOST_ROWS) }, (_, row) =>
      bars(
        values.slice(row * each, (row + 1) * each).map(parseClass),
        rows > 1 ? `Row ${row + 1}` : "",
      ),
    ),
  );
}

function distribution(values) {
  const found = values.map((score, index) => ({ score, index, label: "" }));
  found.sort((one, other) => other.score - one.score);
  return bars(found.slice(0, MOST_BARS));
}

/** Labels with their scores, the best first. */
export function bars(items, title = "") {
  const scores = items.map((item) => item.score);
  const shares = scores.every((score) => score >= 0 && score <= 1);
  const low = shares ? 0 : Math.min(...scores, 0);
  const high = shares ? 1 : Math.max(...scores, low + 1e-9);
  return h(
    "div",
    {},
    title && h("h4", {}, title),
    h(
      "ol",
      { class: "bars" },
      items.map(({ label, index, score }) => {
        const bar = h("span", { class: "bar" });
        bar.style.width = `${Math.max(0.5, (100 * (score - low)) / (high - low))}%`;
        return h(
          "li",
          {},
          h("span", { class: "bar-label" }, label || `class ${index}`),
          h("span", { class: "bar-room", "aria-hidden": "true" }, bar),
          h(
            "span",
            { class: "bar-score" },
            shares ? `${(100 * score).toFixed(score >= 0.0995 ? 1 : 2)} %` : element(score),
          ),
        );
      }),
    ),
  );
}

// ---- texts

export function texts(values) {
  return h(
    "div",
    { class: "texts" },
    values.slice(0, 100).map(textBlock),
    values.length > 100 && more(values.length - 100, "texts"),
  );
}

function textBlock(text) {
  const trimmed = text.trim();
  if (/^[[{]/.test(trimmed)) {
    try {
      return h(
        "pre",
        { class: "text code", tabindex: "0" },
        JSON.stringify(JSON.parse(trimmed), null, 2),
      );
    } catch {
      // Not valid JSON: shown as text.
    }
  }
  return h("p", { class: "text" }, text);
}

function more(count, word) {
  return h("p", { class: "more" }, `and ${count.toLocaleString("en")} more ${word}`);
}

// ---- tables

export function table(values, dims) {
  const columns = dims.length ? dims[dims.length - 1] : 1;
  const rows = columns ? values.length / columns : 0;
  const shownRows = Math.min(rows, MOST_ROWS);
  const shownColumns = Math.min(columns, MOST_COLUMNS);
  if (dims.length < 2 && values.length <= 256)
    return h(
      "p",
      { class: "vector" },
      values.map((value, index) => [
        h("span", { class: "cell", title: `[${index}]` }, element(value)),
        " ",
      ]),
    );
  const head = h(
    "tr",
    {},
    h("td", {}),
    Array.from({ length: shownColumns }, (_, column) => h("th", { scope: "col" }, String(column))),
  );
  const body = Array.from({ length: shownRows }, (_, row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, place(row, dims)),
      values
        .slice(row * columns, row * columns + shownColumns)
        .map((value) => h("td", {}, element(value))),
      shownColumns < columns && h("td", { class: "faded" }, "…"),
    ),
  );
  return h(
    "div",
    {},
    h(
      "div",
      { class: "table-room", tabindex: "0", role: "group", "aria-label": "Values" },
      h("table", { class: "numbers" }, h("thead", {}, head), h("tbody", {}, body)),
    ),
    (shownRows < rows || shownColumns < columns) &&
      h(
        "p",
        { class: "more" },
        `The first ${shownRows} of ${rows.toLocaleString("en")} rows and ${shownColumns} of ${columns.toLocaleString("en")} columns.`,
      ),
  );
}

/** The indices of a row: "2, 0" in a tensor of three dimensions. */
function place(row, dims) {
  const outer = dims.slice(0, -1);
  const found = [];
  for (let at = outer.length - 1; at >= 0; at -= 1) {
    found.unshift(row % outer[at]);
    row = Math.floor(row / outer[at]);
  }
  return found.join(", ");
}

function withTable(drawing, output, dims) {
  const list = h("details", { class: "as-table" }, h("summary", {}, "As numbers"));
  list.addEventListener(
    "toggle",
    () => list.open && list.children.length === 1 && list.append(table(output.values, dims)),
    { once: false },
  );
  return h("div", {}, drawing, list);
}

// ---- heat maps and images

/** A colour of the scale for a share from 0 to 1. */
export function heat(share) {
  const at = Math.min(0.9999, Math.max(0, share || 0)) * (SCALE.length - 1);
  const low = Math.floor(at);
  return SCALE[low].map((part, index) =>
    Math.round(part + (SCALE[low + 1][index] - part) * (at - low)),
  );
}

function range(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    const number = Number(value);
    if (number < low) low = number;
    if (number > high) high = number;
  }
  return [low, high];
}

export function heatMap(values, [rows, columns], name) {
  const [low, high] = range(values);
  const canvas = pixels(rows, columns, (row, column) =>
    heat((Number(values[row * columns + column]) - low) / (high - low || 1)),
  );
  canvas.setAttribute("role", "img");
  canvas.setAttribute(
    "aria-label",
    `Heat map of ${name}, ${rows} by ${columns}, from ${element(low)} to ${element(high)}`,
  );
  const id = freshId("value");
  const readout = h("span", { class: "readout", id });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.min(
      columns - 1,
      Math.floor(((event.clientX - box.left) / box.width) * columns),
    );
    const row = Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows));
    setText(readout, `[${row}, ${column}] = ${element(values[row * columns + column])}`);
  });
  canvas.addEventListener("pointerleave", () => setText(readout, ""));
  const scale = pixels(1, 64, (_, column) => heat(column / 63));
  scale.className = "heat-scale";
  scale.setAttribute("aria-hidden", "true");
  return h(
    "div",
    { class: "heat" },
    canvas,
    h("p", { class: "heat-legend" }, element(low), scale, element(high), readout),
  );
}

function picture({ values, name }, dims) {
  const [first, second, third] = dims;
  const channelsFirst = [1, 3].includes(first) && second >= 8 && third >= 8;
  const [channels, rows, columns] = channelsFirst ? dims : [third, first, second];
  if (channels === 1) return heatMap(values, [rows, columns], name);
  const [low, high] = range(values);
  const scaled = (value) => Math.round((255 * (Number(value) - low)) / (high - low || 1));
  const canvas = pixels(rows, columns, (row, column) =>
    [0, 1, 2].map((channel) =>
      scaled(
        values[
          channelsFirst
            ? (channel * rows + row) * columns + column
            : (row * columns + column) * 3 + channel
        ],
      ),
    ),
  );
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${name} as an image, ${columns} by ${rows}`);
  return h("div", { class: "heat" }, canvas);
}

function pixels(rows, columns, colour) {
  const canvas = h("canvas", { width: columns, height: rows, class: "pixels" });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const [red, green, blue] = colour(row, column);
      image.data.set([red, green, blue, 255], 4 * (row * columns + column));
    }
  }
  context.putImageData(image, 0, 0);
  canvas.style.aspectRatio = `${columns} / ${rows}`;
  return canvas;
}

// ---- an answer marked in its text

/** The text with the part between two offsets (code points, as in Python) marked. */
export function marked(text, start, end) {
  const characters = [...text]; // Python counts code points, JavaScript UTF-16 units
  return h(
    "p",
    { class: "text marked" },
    characters.slice(0, start).join(""),
    h("mark", {}, characters.slice(start, end).join("")),
    characters.slice(end).join(""),
  );
}
