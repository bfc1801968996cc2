// The form field of one input: typed, generated, from an image, or drawn.

import { freshId, h, setShown, setText } from "./dom.js";
import { shape as shapeText } from "./format.js";
import { drawingPad } from "./pad.js";
import { dropZone } from "./dropzone.js";
import { TYPES, defaultShape, madeUp, parseShape, parseValues, size, typed } from "./tensors.js";

const MOST_TYPED = 512;
const WAYS = {
  values: "Typed",
  random: "Random",
  zeros: "Zeros",
  ones: "Ones",
  image: "A picture",
  draw: "Drawn",
};
const SCALES = {
  unit: ["0 to 1", (value) => value / 255],
  byte: ["0 to 255", (value) => value],
  signed: ["−1 to 1", (value) => value / 127.5 - 1],
  imagenet: [
    "ImageNet",
    (value, channel) =>
      (value / 255 - [0.485, 0.456, 0.406][channel]) / [0.229, 0.224, 0.225][channel],
  ],
};

/** The height, width and layout of an image of this shape, or null. */
export function pictureLayout(shape) {
  if (shape.length < 3) return null;
  const [first, second, third] = shape.slice(-3);
  if (shape.slice(0, -3).some((dim) => dim !== 1)) return null;
  if ([1, 3].includes(first) && second > 3 && third > 3)
    return { channels: first, height: second, width: third, first: true };
  if ([1, 3].includes(third) && first > 3 && second > 3)
    return { channels: third, height: first, width: second, first: false };
  return null;
}

/** The side of a small square input, which can be drawn; 0 for others. */
export function squareSide(shape) {
  const side = Math.sqrt(size(shape));
  if (!Number.isInteger(side) || side < 5 || side > 32) return 0;
  const dims = shape.filter((dim) => dim !== 1);
  return dims.length === 1 || (dims.length === 2 && dims[0] === side) ? side : 0;
}

/** The number of lines of the text field. */
function rowsFor(spec) {
  if (spec.datatype === "BYTES") return 3;
  const shape = defaultShape(spec);
  const row = shape.length ? shape[shape.length - 1] : 1;
  return Math.min(8, Math.max(1, Math.ceil(row / 20) * (size(shape) / Math.max(1, row))));
}

export class TensorField {
  /** `spec`: { name, datatype, shape, optional, batched, place }. `changed` is called after every change. */
  constructor(spec, changed) {
    this.spec = spec;
    this._changed = changed;
    this._seed = 1 + spec.place; // different numbers for each input
    this._edited = false;
    this._picture = null; // { data, width, height } of the chosen file
    this._build();
    this._refill();
  }

  _build() {
    const { name, datatype, shape, optional } = this.spec;
    const id = freshId("tensor");
    this._shape = h("input", {
      id: `${id}-shape`,
      value: defaultShape(this.spec).join(", "),
      inputmode: "numeric",
      spellcheck: "false",
    });
    this._way = h("select", { id: `${id}-way` });
    this._text = h("textarea", {
      id: `${id}-values`,
      rows: rowsFor(this.spec),
      spellcheck: "false",
      "aria-label": `Values of ${name}`,
      "aria-describedby": `${id}-problem`,
    });
    this._again = h("button", { type: "button", class: "quiet" }, "New random values");
    this._words = h("p", { class: "hint" });
    this._problem = h("p", { class: "complaint", id: `${id}-problem`, role: "alert" });
    this._sent = optional ? h("input", { id: `${id}-sent`, type: "checkbox" }) : null;
    this._scale = h(
      "select",
      { id: `${id}-scale` },
      Object.entries(SCALES).map(([key, [label]]) => h("option", { value: key }, label)),
    );
    if (datatype === "UINT8") this._scale.value = "byte";
    this._drop = dropZone({
      label: "or drop an image here",
      take: (file) => this._takePicture(file),
    });
    this._pictureBox = h(
      "div",
      { class: "picture-box" },
      this._drop,
      h("div", { class: "field" }, h("label", { for: `${id}-scale` }, "Values"), this._scale),
    );
    this._pad = h("div", { class: "pad-box" });
    const dynamic = shape.some((dim) => dim < 0);
    this._shapeField = h(
      "div",
      { class: "field short" },
      h("label", { for: `${id}-shape` }, "Shape"),
      this._shape,
    );
    this._body = h(
      "div",
      { class: "tensor-body" },
      h(
        "div",
        { class: "tensor-row" },
        dynamic ? this._shapeField : null,
        h(
          "div",
          { class: "field short" },
          h("label", { for: `${id}-way` }, "Filled with"),
          this._way,
        ),
        this._again,
      ),
      this._text,
      this._pictureBox,
      this._pad,
      this._words,
      this._problem,
    );
    this.element = h(
      "fieldset",
      { class: "tensor" },
      h(
        "legend",
        {},
        h("span", { class: "tensor-name" }, name),
        " ",
        h("small", {}, `${datatype} ${shapeText(shape)}${optional ? ", optional" : ""}`),
      ),
      this._sent &&
        h(
          "div",
          { class: "check" },
          this._sent,
          h("label", { for: `${id}-sent` }, "Send this input"),
        ),
      this._body,
    );
    this._offerWays();
    const wanted = this._ways();
    const elements = size(defaultShape(this.spec));
    this._way.value =
      elements <= MOST_TYPED ? "values" : wanted.includes("image") ? "image" : "random";
    if (wanted.includes("draw") && elements <= 1024 && TYPES[datatype].float)
      this._way.value = "draw";

    this._shape.addEventListener("input", () => this._shapeChanged());
    this._way.addEventListener("change", () => this._refill());
    this._again.addEventListener("click", () => {
      this._seed += 1;
      this._edited = false;
      this._refill();
    });
    this._text.addEventListener("input", () => {
      this._edited = true;
      this._check();
    });
    this._scale.addEventListener("change", () => this._check());
    this._sent?.addEventListener("change", () => {
      setShown(this._body, this._sent.checked);
      this._check();
    });
    if (this._sent) setShown(this._body, false);
  }

  /** Whether this input is part of the request. */
  get sent() {
    return this._sent ? this._sent.checked : true;
  }

  /** The tensor. Throws an Error with a message for the user if it is invalid. */
  tensor() {
    const { name, datatype } = this.spec;
    const shape = this._dims();
    const way = this._way.value;
    let values;
    if (way === "values") values = parseValues(this._text.value, datatype, shape, name);
    else if (way === "image") values = this._pictureValues(shape);
    else if (way === "draw") values = this._drawnValues();
    else values = madeUp(way, datatype, shape, name, this._seed);
    return { name, datatype, shape, values, made: way };
  }

  /** Focus its values. */
  focus() {
    const places = [
      this._text,
      this._pad.querySelector("canvas"),
      this._pictureBox.querySelector("input"),
      this._shape,
    ];
    places.find((place) => place?.checkVisibility({ visibilityProperty: true }))?.focus();
  }

  /** Show the error of this input, or none. */
  complain(text) {
    setText(this._problem, text);
    this._text.setAttribute("aria-invalid", text ? "true" : "false");
    this._shape.setAttribute("aria-invalid", text ? "true" : "false");
  }

  _dims() {
    const { shape, name } = this.spec;
    return shape.some((dim) => dim < 0) ? parseShape(this._shape.value, shape, name) : [...shape];
  }

  _ways() {
    let shape;
    try {
      shape = this._dims();
    } catch {
      return ["values", "random", "zeros", "ones"];
    }
    if (this.spec.datatype === "BYTES") return ["values", "random"];
    const ways = ["values", "random", "zeros", "ones"];
    if (pictureLayout(shape)) ways.push("image");
    if (squareSide(shape) && this.spec.datatype !== "BOOL") ways.push("draw");
    return ways;
  }

  _offerWays() {
    const kept = this._way.value;
    const ways = this._ways();
    this._way.replaceChildren(...ways.map((way) => h("option", { value: way }, WAYS[way])));
    this._way.value = ways.includes(kept) ? kept : "values";
  }

  _shapeChanged() {
    try {
      this._dims();
    } catch (error) {
      this.complain(error.message);
      this._changed();
      return;
    }
    this._offerWays();
    this._refill();
  }

  _refill() {
    const { name, datatype } = this.spec;
    let shape;
    try {
      shape = this._dims();
    } catch (error) {
      this.complain(error.message);
      return;
    }
    const way = this._way.value;
    if (way === "values" && !this._edited) {
      const start =
        datatype === "BYTES" && this._seed === 1 + this.spec.place
          ? Array(size(shape)).fill("a shoal of fish")
          : madeUp("random", datatype, shape, name, this._seed);
      this._text.value = size(shape) <= 20000 ? typed(start, shape, datatype) : "";
    }
    setShown(this._text, way === "values");
    setShown(this._pictureBox, way === "image");
    setShown(this._pad, way === "draw");
    setShown(this._again, (way === "values" && datatype !== "BYTES") || way === "random");
    if (way === "draw") this._makePad(squareSide(shape));
    const many = size(shape).toLocaleString("en");
    const words = {
      values: datatype === "BYTES" && size(shape) > 1 ? "One text per line." : "",
      random: `${many} random values.`,
      zeros: `${many} zeros.`,
      ones: `${many} ones.`,
      image: "The image is scaled to the model's size.",
      draw: "",
    };
    setText(this._words, words[way] ?? "");
    setShown(this._words, Boolean(words[way]));
    this._check();
  }

  _check() {
    let text = "";
    try {
      if (this.sent && !(this._way.value === "image" && !this._picture)) this.tensor();
    } catch (error) {
      text = error.message;
    }
    this.complain(text);
    this._changed();
  }

  // ---- pictures

  async _takePicture(file) {
    if (!file) {
      this._picture = null;
      this._check();
      return;
    }
    try {
      const bitmap = await createImageBitmap(file);
      const layout = pictureLayout(this._dims());
      const canvas = h("canvas", { width: layout.width, height: layout.height });
      const context = canvas.getContext("2d");
      context.drawImage(bitmap, 0, 0, layout.width, layout.height);
      this._picture = context.getImageData(0, 0, layout.width, layout.height);
    } catch {
      this._picture = null;
      this.complain(`This browser cannot read ${file.name} as an image.`);
      return;
    }
    this._check();
  }

  _pictureValues(shape) {
    const layout = pictureLayout(shape);
    if (!this._picture) throw new Error(`Choose an image for ${this.spec.name}.`);
    const { data } = this._picture;
    const { channels, height, width, first } = layout;
    const whole = !TYPES[this.spec.datatype].float;
    const scale = SCALES[this._scale.value][1];
    const values = new Array(channels * height * width);
    for (let at = 0; at < height * width; at += 1) {
      for (let channel = 0; channel < channels; channel += 1) {
        const [red, green, blue] = data.slice(4 * at, 4 * at + 3);
        const pixel =
          channels === 1 ? 0.299 * red + 0.587 * green + 0.114 * blue : data[4 * at + channel];
        const value = whole ? Math.round(pixel) : scale(pixel, channel);
        values[first ? channel * height * width + at : at * channels + channel] = value;
      }
    }
    return values;
  }

  // ---- the drawing pad

  _makePad(side) {
    if (this._drawing?.side === side) return;
    const { name, datatype } = this.spec;
    const ink = side === 8 ? 16 : TYPES[datatype].float ? 1 : 255; // the usual range of such images
    this._drawing = drawingPad(name, side, ink, {
      changed: () => this._check(),
      drawn: () => this.drawn?.(),
    });
    this._pad.replaceChildren(...this._drawing.elements);
  }

  _drawnValues() {
    const whole = !TYPES[this.spec.datatype].float;
    return this._drawing.values().map((value) => (whole ? Math.round(value) : value));
  }
}
