// Converts tensors between form values and the protocol's JSON or bytes.
//
// Pure functions, tested in the browser. INT64 and UINT64 values beyond 2^53 are BigInts; all
// other numbers are numbers. A tensor is { name, datatype, shape, values }.

export const TYPES = {
  BOOL: { size: 1 },
  UINT8: { size: 1, low: 0, high: 255 },
  UINT16: { size: 2, low: 0, high: 65535 },
  UINT32: { size: 4, low: 0, high: 4294967295 },
  UINT64: { size: 8, low: 0n, high: 18446744073709551615n },
  INT8: { size: 1, low: -128, high: 127 },
  INT16: { size: 2, low: -32768, high: 32767 },
  INT32: { size: 4, low: -2147483648, high: 2147483647 },
  INT64: { size: 8, low: -9223372036854775808n, high: 9223372036854775807n },
  FP16: { size: 2, float: true },
  BF16: { size: 2, float: true },
  FP32: { size: 4, float: true },
  FP64: { size: 8, float: true },
  BYTES: { size: 0 },
};
export const NEEDS_BINARY = new Set(["FP16", "BF16"]); // not expressible in JSON

const WORD = /[^\s,;[\]()]+/g;
const NOT_FINITE = {
  nan: NaN,
  infinity: Infinity,
  "-infinity": -Infinity,
  inf: Infinity,
  "-inf": -Infinity,
};

/** The number of elements of a shape. */
export function size(shape) {
  return shape.reduce((product, dim) => product * dim, 1);
}

// ---- shapes

/** The initial shape: 1 for the batch, and a usual size for variable dimensions. */
export function defaultShape(spec) {
  const free = spec.shape.filter((dim) => dim < 0).length;
  const image = looksLikeImage(spec.shape);
  return spec.shape.map((dim, index) => {
    if (dim >= 0) return dim;
    if (index === 0 && (free > 1 || spec.shape.length > 1 || spec.batched)) return 1;
    if (image) return 224;
    if (spec.datatype === "BYTES") return 1;
    return isTokens(spec.name) ? 16 : 4;
  });
}

/** [-1, 3, -1, -1] or [-1, -1, -1, 3]: images of any size. */
function looksLikeImage(shape) {
  if (shape.length < 3) return false;
  const [first, ...last] = shape.slice(-3);
  return [1, 3].includes(first) || [1, 3].includes(last[1]);
}

function isTokens(name) {
  return /ids|mask|token|segment/i.test(name);
}

/** Read "1, 16" or "[1, 16]". Throws for an invalid shape, or one the model does not accept. */
export function parseShape(text, dims, name) {
  const words = text.match(WORD) ?? [];
  const shape = words.map((word) => {
    if (!/^\d+$/.test(word))
      throw new Error(
        `The shape of ${name} must be whole numbers, such as ${example(dims)}; found “${word}”.`,
      );
    return Number(word);
  });
  if (shape.length !== dims.length) {
    throw new Error(
      `The shape of ${name} must have ${dims.length} dimensions, such as ${example(dims)}; found ${shape.length}.`,
    );
  }
  dims.forEach((dim, index) => {
    if (dim >= 0 && shape[index] !== dim) {
      throw new Error(
        `Dimension ${index + 1} of ${name} must be ${dim}; found ${shape[index]}.`,
      );
    }
  });
  if (size(shape) > 50_000_000)
    throw new Error(`${name} would have ${size(shape)} elements, too many for a browser.`);
  return shape;
}

function example(dims) {
  return dims.map((dim) => (dim < 0 ? 1 : dim)).join(", ") || "(nothing)";
}

// ---- values

/** Read typed values: numbers separated by commas, blanks or brackets; texts line by line. */
export function parseValues(text, datatype, shape, name) {
  const wanted = size(shape);
  const values =
    datatype === "BYTES"
      ? texts(text, wanted)
      : (text.match(WORD) ?? []).map((word) => number(word, datatype, name));
  if (values.length !== wanted) {
    throw new Error(
      `${name} needs ${wanted} values for the shape [${shape.join(", ")}]; found ${values.length}.`,
    );
  }
  return values;
}

/** One element is the whole text; several are one on each line. */
function texts(text, wanted) {
  return wanted === 1 ? [text] : text.replace(/\n$/, "").split("\n");
}

function number(word, datatype, name) {
  const type = TYPES[datatype];
  if (datatype === "BOOL") {
    if (/^(true|1)$/i.test(word)) return true;
    if (/^(false|0)$/i.test(word)) return false;
    throw new Error(`${name} is BOOL: write true or false; found “${word}”.`);
  }
  if (type.float) {
    const value = word.toLowerCase() in NOT_FINITE ? NOT_FINITE[word.toLowerCase()] : Number(word);
    if (Number.isNaN(value) && word.toLowerCase() !== "nan")
      throw new Error(`${name} is ${datatype}; “${word}” is not a number.`);
    return value;
  }
  if (!/^[+-]?\d+$/.test(word))
    throw new Error(`${name} is ${datatype}; “${word}” is not a whole number.`);
  const exact = BigInt(word.replace("+", ""));
  if (exact < BigInt(type.low) || exact > BigInt(type.high)) {
    throw new Error(
      `${name} is ${datatype}, from ${type.low} to ${type.high}; ${word} does not fit.`,
    );
  }
  const value = Number(exact);
  return Number.isSafeInteger(value) ? value : exact;
}

/** Values as text: a row of the last dimension on each line. */
export function typed(values, shape, datatype) {
  if (datatype === "BYTES") return values.join("\n");
  const row = shape.length ? shape[shape.length - 1] : 1;
  const lines = [];
  for (let at = 0; at < values.length; at += Math.max(1, row)) {
    lines.push(
      values
        .slice(at, at + row)
        .map(String)
        .join(", "),
    );
  }
  return lines.join("\n");
}

/** A random generator from 0 to 1; the same seed gives the same numbers. */
export function chances(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

const WORDS = ["a shoal of fish", "hello", "the quick brown fox", "one eel", "good morning"];

/** Generated values that most models accept: see each line. */
export function madeUp(kind, datatype, shape, name, seed = 1) {
  const chance = chances(seed);
  const make = () => {
    if (datatype === "BYTES")
      return kind === "random" ? WORDS[Math.floor(chance() * WORDS.length)] : "";
    if (kind === "zeros") return datatype === "BOOL" ? false : 0;
    if (kind === "ones" || /mask/i.test(name)) return datatype === "BOOL" ? true : 1;
    if (datatype === "BOOL") return chance() < 0.5;
    if (TYPES[datatype].float) return Math.round(chance() * 1000) / 1000;
    if (/type_ids|segment/i.test(name)) return 0;
    return Math.floor(chance() * (isTokens(name) ? 100 : 10));
  };
  return Array.from({ length: size(shape) }, make);
}

// ---- bytes

/** The elements in the format of the binary extension: little-endian; BYTES with lengths. */
export function encode(values, datatype) {
  if (datatype === "BYTES") {
    const parts = values.map((text) => new TextEncoder().encode(text));
    const whole = new Uint8Array(parts.reduce((sum, part) => sum + 4 + part.length, 0));
    const view = new DataView(whole.buffer);
    let at = 0;
    for (const part of parts) {
      view.setUint32(at, part.length, true);
      whole.set(part, at + 4);
      at += 4 + part.length;
    }
    return whole;
  }
  const { size: width } = TYPES[datatype];
  const whole = new Uint8Array(values.length * width);
  const view = new DataView(whole.buffer);
  values.forEach((value, index) => write(view, index * width, value, datatype));
  return whole;
}

function write(view, at, value, datatype) {
  switch (datatype) {
    case "BOOL":
      return view.setUint8(at, value ? 1 : 0);
    case "UINT8":
      return view.setUint8(at, value);
    case "INT8":
      return view.setInt8(at, value);
    case "UINT16":
      return view.setUint16(at, value, true);
    case "INT16":
      return view.setInt16(at, value, true);
    case "UINT32":
      return view.setUint32(at, value, true);
    case "INT32":
      return view.setInt32(at, value, true);
    case "UINT64":
      return view.setBigUint64(at, BigInt(value), true);
    case "INT64":
      return view.setBigInt64(at, BigInt(value), true);
    case "FP16":
      return view.setUint16(at, toHalf(value), true);
    case "BF16":
      return view.setUint16(at, toBrain(value), true);
    case "FP32":
      return view.setFloat32(at, value, true);
    case "FP64":
      return view.setFloat64(at, value, true);
    default:
      throw new Error(`The console does not support the datatype ${datatype}.`);
  }
}

/** The elements of an output's bytes. */
export function decode(data, datatype) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  if (datatype === "BYTES") {
    const found = [];
    for (let at = 0; at < data.length; ) {
      const length = view.getUint32(at, true);
      found.push(new TextDecoder().decode(data.subarray(at + 4, at + 4 + length)));
      at += 4 + length;
    }
    return found;
  }
  const { size: width } = TYPES[datatype];
  return Array.from({ length: data.length / width }, (_, index) =>
    read(view, index * width, datatype),
  );
}

function read(view, at, datatype) {
  switch (datatype) {
    case "BOOL":
      return view.getUint8(at) !== 0;
    case "UINT8":
      return view.getUint8(at);
    case "INT8":
      return view.getInt8(at);
    case "UINT16":
      return view.getUint16(at, true);
    case "INT16":
      return view.getInt16(at, true);
    case "UINT32":
      return view.getUint32(at, true);
    case "INT32":
      return view.getInt32(at, true);
    case "UINT64":
      return narrowed(view.getBigUint64(at, true));
    case "INT64":
      return narrowed(view.getBigInt64(at, true));
    case "FP16":
      return fromHalf(view.getUint16(at, true));
    case "BF16":
      return fromBrain(view.getUint16(at, true));
    case "FP32":
      return view.getFloat32(at, true);
    case "FP64":
      return view.getFloat64(at, true);
    default:
      throw new Error(`The console does not support the datatype ${datatype}.`);
  }
}

function narrowed(value) {
  const plain = Number(value);
  return Number.isSafeInteger(plain) ? plain : value;
}

const scratch = new DataView(new ArrayBuffer(4));

function bits(value) {
  scratch.setFloat32(0, value);
  return scratch.getUint32(0);
}

/** The 16 bits of a half float, rounded to the nearest, ties to even. */
export function toHalf(value) {
  const word = bits(value);
  const sign = (word >>> 16) & 0x8000;
  const exponent = (word >>> 23) & 0xff;
  let mantissa = word & 0x7fffff;
  if (exponent === 0xff) return sign | 0x7c00 | (mantissa ? 0x200 : 0);
  const scaled = exponent - 112;
  if (scaled >= 31) return sign | 0x7c00;
  if (scaled <= 0) {
    if (scaled < -10) return sign;
    mantissa |= 0x800000;
    return sign | roundedShift(mantissa, 14 - scaled);
  }
  return sign | ((scaled << 10) + roundedShift(mantissa, 13));
}

function roundedShift(value, places) {
  const kept = value >>> places;
  const lost = value & ((1 << places) - 1);
  const half = 1 << (places - 1);
  return lost > half || (lost === half && kept & 1) ? kept + 1 : kept;
}

export function fromHalf(word) {
  const sign = word & 0x8000 ? -1 : 1;
  const exponent = (word >>> 10) & 0x1f;
  const mantissa = word & 0x3ff;
  if (exponent === 0x1f) return mantissa ? NaN : sign * Infinity;
  if (!exponent) return sign * mantissa * 2 ** -24;
  return sign * (1 + mantissa / 1024) * 2 ** (exponent - 15);
}

/** The upper half of a float's bits, rounded to the nearest, ties to even. */
export function toBrain(value) {
  const word = bits(value);
  if (Number.isNaN(value)) return (word >>> 16) | 0x40;
  return (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
}

export function fromBrain(word) {
  scratch.setUint32(0, (word << 16) >>> 0);
  return scratch.getFloat32(0);
}

// ---- requests and responses

/** One element in JSON; NaN and Infinity as bare words. */
export function jsonElement(value) {
  return typeof value === "number" || typeof value === "bigint"
    ? String(value)
    : JSON.stringify(value);
}

/** A tensor's values as a JSON list. */
export function jsonList(values) {
  return `[${values.map(jsonElement).join(", ")}]`;
}

/** Body and headers of an inference request. Outputs are binary: exact for every type. */
export function inferBody(inputs, outputs, { binary = false, parameters = {} } = {}) {
  const blobs = [];
  const listed = inputs.map((input) => {
    const entry = { name: input.name, datatype: input.datatype, shape: input.shape };
    const head = JSON.stringify(entry).slice(0, -1);
    if (!binary && !NEEDS_BINARY.has(input.datatype)) {
      return `${head},"data":${jsonList(input.values)}}`;
    }
    const blob = encode(input.values, input.datatype);
    blobs.push(blob);
    return `${head},"parameters":{"binary_data_size":${blob.length}}}`;
  });
  const wanted = outputs.map(({ name, classes }) => ({
    name,
    parameters: classes ? { classification: classes } : { binary_data: true },
  }));
  const rest = Object.keys(parameters).length ? `,"parameters":${JSON.stringify(parameters)}` : "";
  const text = `{"inputs":[${listed.join(",")}],"outputs":${JSON.stringify(wanted)}${rest}}`;
  const header = new TextEncoder().encode(text);
  if (!blobs.length)
    return { body: new Blob([header]), headers: { "Content-Type": "application/json" } };
  return {
    body: new Blob([header, ...blobs]),
    headers: {
      "Content-Type": "application/octet-stream",
      "Inference-Header-Content-Length": String(header.length),
    },
  };
}

/** The outputs of a response: [{ name, datatype, shape, values }], and its other fields. */
export function readAnswer(buffer, headerLength) {
  const whole = new Uint8Array(buffer);
  const length = headerLength === null ? whole.length : Number(headerLength);
  const document = JSON.parse(new TextDecoder().decode(whole.subarray(0, length)));
  let at = length;
  const outputs = (document.outputs ?? []).map((output) => {
    const bytes = output.parameters?.binary_data_size;
    let values = output.data;
    if (bytes !== undefined) {
      values = decode(whole.subarray(at, at + bytes), output.datatype);
      at += bytes;
    }
    return { name: output.name, datatype: output.datatype, shape: output.shape, values };
  });
  return { model_name: document.model_name, model_version: document.model_version, outputs };
}
