// The request of a form as code: with curl, and in Python with shoal.client.
//
// It works unchanged in any POSIX shell and from Python 3.10 on. Typed tensors are written out; large
// or generated ones are generated in the code, too, with a comment.

import { NEEDS_BINARY, encode, jsonList, size } from "./tensors.js";

const MOST_WRITTEN = 512; // elements
const NUMPY = {
  BOOL: "np.bool_",
  UINT8: "np.uint8",
  UINT16: "np.uint16",
  UINT32: "np.uint32",
  UINT64: "np.uint64",
  INT8: "np.int8",
  INT16: "np.int16",
  INT32: "np.int32",
  INT64: "np.int64",
  FP16: "np.float16",
  FP32: "np.float32",
  FP64: "np.float64",
  BYTES: "np.object_",
};

/** A quoted word of the shell. */
export function shellWord(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** A Python string. JSON's escapes are valid in Python. */
export function pythonText(text) {
  return JSON.stringify(text).replace(
    /[\u007f-\u009f\u2028\u2029]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

function written(input) {
  return input.values.length <= MOST_WRITTEN;
}

/** `-H 'key: …'` for restricted APIs and keys. The value comes from the environment. */
function curlHeaders(locked) {
  return locked
    .map((header) => ` -H "${header}: ${isKey(header) ? "Bearer " : ""}$${variable(header)}"`)
    .join("");
}

function isKey(header) {
  return header === "Authorization";
}

function variable(header) {
  return isKey(header) ? "SHOAL_API_KEY" : header.toUpperCase().replace(/[^A-Z0-9]+/g, "_");
}

function pythonHeaders(locked) {
  return locked.map(
    (header) =>
      `${pythonText(header)}: ${isKey(header) ? '"Bearer " + ' : ""}os.environ["${variable(header)}"]`,
  );
}

// ---- inference

/**
 * With curl. `request`: { origin, path, inputs, outputs: [{ name, classes, datatype }], parameters,
 * locked }; `path` begins with a slash.
 */
export function curlInfer({ origin, path, inputs, outputs, parameters = {}, locked = [] }) {
  const url = shellWord(`${origin}${path}/infer`);
  const classes = outputs.filter((output) => output.classes);
  const binaryOutput = outputs.some((output) => NEEDS_BINARY.has(output.datatype));
  const more = { ...parameters, ...(binaryOutput ? { binary_data_output: true } : {}) };
  const tail = [];
  if (classes.length) {
    const wanted = outputs.map(({ name, classes: best }) =>
      best ? { name, parameters: { classification: best } } : { name },
    );
    tail.push(`"outputs": ${JSON.stringify(wanted)}`);
  }
  if (Object.keys(more).length) tail.push(`"parameters": ${JSON.stringify(more)}`);
  const target = binaryOutput ? " --output answer.bin" : "";
  const plain = inputs.every((input) => written(input) && !NEEDS_BINARY.has(input.datatype));
  if (plain) {
    const listed = inputs.map((input) => `  ${jsonTensor(input)}`).join(",\n");
    const body = `{"inputs": [\n${listed}]${tail.map((part) => `,\n ${part}`).join("")}}`;
    return `curl ${url}${curlHeaders(locked)}${target} -d ${quoted(body)}`;
  }
  return curlBinary(url, inputs, tail, target, locked);
}

function curlBinary(url, inputs, tail, target, locked) {
  const lines = [];
  let madeUp = false;
  const listed = inputs.map((input) => {
    if (written(input)) {
      const blob = encode(input.values, input.datatype);
      lines.push(`printf %s '${base64(blob)}' | base64 -d;`);
      return tensorHead(input, blob.length);
    }
    madeUp = true;
    const bytes = encode(input.values.map(zero), input.datatype).length;
    lines.push(`head -c ${bytes} /dev/zero;`);
    return tensorHead(input, bytes);
  });
  const text = `{"inputs": [${listed.join(", ")}]${tail.map((part) => `, ${part}`).join("")}}`;
  const length = new TextEncoder().encode(text).length;
  const note = madeUp ? "# zeros stand for the numbers of large tensors\n" : "";
  return (
    `${note}{ printf %s ${quoted(text)};\n  ${lines.join("\n  ")}\n} | curl ${url}${curlHeaders(locked)} ` +
    `-H 'Inference-Header-Content-Length: ${length}' \\\n    --data-binary @-${target}`
  );
}

function zero(value) {
  return typeof value === "string" ? "" : 0;
}

function tensorHead(input, bytes) {
  const entry = {
    name: input.name,
    datatype: input.datatype,
    shape: input.shape,
    parameters: { binary_data_size: bytes },
  };
  return JSON.stringify(entry);
}

function jsonTensor({ name, datatype, shape, values }) {
  return `{"name": ${JSON.stringify(name)}, "datatype": "${datatype}", "shape": [${shape.join(", ")}],\n   "data": ${jsonList(values)}}`;
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function base64(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

/** In Python. The same `request`, with `host` as `Client` takes it and `model`, `version`. */
export function pythonInfer({
  host,
  model,
  version = "",
  inputs,
  outputs,
  parameters = {},
  locked = [],
}) {
  const needsInput = inputs.some((input) => input.datatype === "BF16");
  const made = inputs
    .map((input) => `        ${pythonText(input.name)}: ${array(input)},\n`)
    .join("");
  const best = outputs.filter((output) => output.classes);
  const { sequence_id: sequence, sequence_start: start, sequence_end: end } = parameters;
  const options = [
    version && `    version=${pythonText(version)},\n`,
    best.length &&
      `    classes={${best.map(({ name, classes }) => `${pythonText(name)}: ${classes}`).join(", ")}},\n`,
    sequence !== undefined &&
      `    sequence_id=${sequence}, sequence_start=${start ? "True" : "False"}, sequence_end=${end ? "True" : "False"},\n`,
  ].filter(Boolean);
  const shown = outputs.map(({ name, classes }) =>
    classes
      ? `print(result.top_k(${pythonText(name)}, ${classes}))`
      : `print(result[${pythonText(name)}])`,
  );
  return (
    `import numpy as np\nfrom shoal.client import Client${needsInput ? ", Input" : ""}\n\n` +
    `${client(host, locked)}result = client.infer(\n    ${pythonText(model)},\n    {\n${made}    },\n${options.join("")})\n${shown.join("\n")}\n`
  );
}

function client(host, locked) {
  if (!locked.length) return `client = Client(${pythonText(host)})\n`;
  const headers = pythonHeaders(locked.filter((header) => !isKey(header)));
  const options = [
    ...(locked.some(isKey) ? ['api_key=os.environ["SHOAL_API_KEY"]'] : []),
    ...(headers.length ? [`headers={${headers.join(", ")}}`] : []),
  ];
  return `import os\n\nclient = Client(${pythonText(host)}, ${options.join(", ")})\n`;
}

function array({ datatype, shape, values, made }) {
  const dims = `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
  if (datatype === "BF16") {
    const words =
      values.length <= MOST_WRITTEN ? [...new Uint16Array(encode(values, "BF16").buffer)] : null;
    return words
      ? `Input(np.array([${words.join(", ")}], np.uint16).reshape(${dims}), "BF16")`
      : `Input(np.zeros(${dims}, np.uint16), "BF16")`;
  }
  const type = NUMPY[datatype];
  if (values.length > MOST_WRITTEN) {
    if (datatype === "BYTES") return `np.full(${dims}, b"", np.object_)`;
    if (made === "zeros" || datatype === "BOOL") return `np.zeros(${dims}, ${type})`;
    if (made === "ones") return `np.ones(${dims}, ${type})`;
    if (/^FP/.test(datatype)) return `np.random.default_rng().random(${dims}).astype(${type})`;
    return `np.random.default_rng().integers(0, 10, ${dims}).astype(${type})`;
  }
  return `np.array([${values.map(pythonElement).join(", ")}], ${type}).reshape(${dims})`;
}

function pythonElement(value) {
  if (typeof value === "string") return pythonText(value);
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number" && !Number.isFinite(value)) {
    return Number.isNaN(value) ? "np.nan" : value > 0 ? "np.inf" : "-np.inf";
  }
  return String(value);
}

// ---- streams

/** The JSON object of a generate request: one element as itself, several as a flat list. */
export function generateBody(inputs) {
  const members = inputs.map(({ name, values }) => {
    const list = jsonList(values);
    return `${JSON.stringify(name)}: ${values.length === 1 ? list.slice(1, -1) : list}`;
  });
  return `{${members.join(", ")}}`;
}

export function curlStream({ origin, path, inputs, locked = [] }) {
  return `curl -N ${shellWord(`${origin}${path}/generate_stream`)}${curlHeaders(locked)} -d ${quoted(generateBody(inputs))}`;
}

export function pythonStream({ host, model, version = "", inputs, locked = [] }) {
  const members = inputs.map(({ name, values }) => {
    const list = values.map(pythonElement);
    return `${pythonText(name)}: ${list.length === 1 ? list[0] : `[${list.join(", ")}]`}`;
  });
  const numpy = members.some((member) => member.includes("np.")) ? "import numpy as np\n" : "";
  const chosen = version ? `, version=${pythonText(version)}` : "";
  return (
    `${numpy}from shoal.client import Client\n\n${client(host, locked)}` +
    `for answer in client.generate_stream(${pythonText(model)}, {${members.join(", ")}}${chosen}):\n    print(answer, flush=True)\n`
  );
}

// ---- conversations

export function curlChat({ origin, document, locked = [] }) {
  const url = shellWord(`${origin}/v1/chat/completions`);
  return `curl -N ${url}${curlHeaders(locked)} -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(document))}`;
}

/** With OpenAI's own client. */
export function pythonChat({ origin, document, locked = [] }) {
  const headers = pythonHeaders(locked.filter((header) => !isKey(header)));
  const key = locked.some(isKey) ? 'os.environ["SHOAL_API_KEY"]' : '"any"';
  const more = headers.length ? `, default_headers={${headers.join(", ")}}` : "";
  const values = Object.entries(document).map(([name, value]) => `${name}=${pythonValue(value)}`);
  return (
    `${locked.length ? "import os\n\n" : ""}from openai import OpenAI\n\n` +
    `client = OpenAI(base_url=${pythonText(`${origin}/v1`)}, api_key=${key}${more})\n` +
    `for piece in client.chat.completions.create(\n    ${values.join(",\n    ")},\n):\n` +
    '    print(piece.choices[0].delta.content or "", end="", flush=True)\n'
  );
}

// ---- tasks

/** A file's bytes to a task. */
export function curlFile({ origin, path, verb, query = "", file, locked = [] }) {
  const name = file ? `./${file}` : "photo.jpg";
  const stream = query.includes("stream") ? " -N" : "";
  return `curl${stream} ${shellWord(`${origin}${path}/${verb}${query}`)}${curlHeaders(locked)} --data-binary ${shellWord(`@${name}`)}`;
}

/** JSON to a task. */
export function curlJson({ origin, path, verb, document, locked = [] }) {
  return `curl ${shellWord(`${origin}${path}/${verb}`)}${curlHeaders(locked)} -d ${quoted(JSON.stringify(document))}`;
}

/** Either, with Python's standard library. `source` is the Python expression of the body. */
export function pythonTask({ origin, path, verb, query = "", source, shown, locked = [] }) {
  const headers = pythonHeaders(locked);
  const imports = ["import json", ...(locked.length ? ["import os"] : []), "import urllib.request"];
  if (source.includes("Path(")) imports.push("from pathlib import Path");
  const more = headers.length ? `, {${headers.join(", ")}}` : "";
  return (
    `${imports.join("\n")}\n\nbody = ${source}\nrequest = urllib.request.Request(${pythonText(`${origin}${path}/${verb}${query}`)}, body${more})\n` +
    `with urllib.request.urlopen(request) as answer:\n    found = json.load(answer)\n${shown}\n`
  );
}

export function pythonFile(file) {
  return `Path(${pythonText(file || "photo.jpg")}).read_bytes()`;
}

export function pythonJson(document) {
  return `json.dumps(${pythonValue(document)}).encode()`;
}

function pythonValue(value) {
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (value !== null && typeof value === "object") {
    return `{${Object.entries(value)
      .map(([key, each]) => `${pythonText(key)}: ${pythonValue(each)}`)
      .join(", ")}}`;
  }
  if (value === null) return "None";
  return pythonElement(value);
}

/** The total number of elements: large requests are sent in binary. */
export function elements(inputs) {
  return inputs.reduce((sum, input) => sum + size(input.shape), 0);
}
