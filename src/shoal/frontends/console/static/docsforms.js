// Fields for the arguments of a route, and the request that they make.

import { address } from "./api.js";
import { freshId, h } from "./dom.js";

const JSON_TYPE = "application/json";
const FORM_TYPE = "multipart/form-data";

/** A schema without references. */
function resolved(api, schema = {}) {
  const name = schema.$ref?.split("/").pop();
  return name ? { ...api.components.schemas[name], ...without(schema, "$ref") } : schema;
}

function without(object, key) {
  const { [key]: _, ...rest } = object;
  return rest;
}

/** An example of a value, as deep as is useful. */
export function example(api, schema, depth = 0) {
  const own = resolved(api, schema);
  if (own.default !== undefined) return own.default;
  if (own.examples?.length) return own.examples[0];
  if (own.enum) return own.enum[0];
  const kind = Array.isArray(own.type) ? own.type[0] : own.type;
  const choice = own.anyOf ?? own.oneOf ?? own.allOf;
  if (choice && depth < 6) return example(api, choice[0], depth + 1);
  if (kind === "object" && depth < 6) {
    const required = own.required ?? Object.keys(own.properties ?? {});
    const members = Object.entries(own.properties ?? {}).filter(([name]) => required.includes(name));
    return Object.fromEntries(members.map(([name, each]) => [name, example(api, each, depth + 1)]));
  }
  if (kind === "array" && depth < 6) {
    if (own.prefixItems) return own.prefixItems.map((each) => example(api, each, depth + 1));
    const count = Math.min(own.minItems ?? 1, 4);
    return own.items ? Array(count).fill(example(api, own.items, depth + 1)) : [];
  }
  return { string: "", integer: own.minimum ?? 0, number: own.minimum ?? 0, boolean: false }[kind] ?? null;
}

/** The name of a type, for people. */
function kindOf(own) {
  if (own.format === "binary") return "file";
  if (own.items?.format === "binary") return "files";
  if (own.contentEncoding === "base64") return "base64";
  if (own.enum) return "choice";
  if (own.type === "array") return "list, as JSON";
  const kind = Array.isArray(own.type) ? own.type.join(" or ") : own.type;
  return kind === "object" || !kind ? "JSON" : kind;
}

/**
 * One argument: its element, and `read`, which returns its value, its Files, or undefined if it is left
 * out. `read` throws for text that is not JSON where JSON is needed.
 */
export function fieldOf(api, name, schema, required, description = "") {
  const own = resolved(api, schema);
  const id = freshId("field");
  const kind = kindOf(own);
  const { input, read } = control(api, name, own, kind, id, required);
  const label = h("label", { for: id }, name, " ", h("small", {}, kind, required ? "" : ", optional"));
  const about = description || own.description;
  return {
    name,
    read,
    isFile: kind.startsWith("file"),
    element: h("div", { class: "field" }, label, input, about ? h("small", { class: "hint" }, about) : null),
  };
}

function control(api, name, own, kind, id, required) {
  if (kind.startsWith("file")) {
    const input = h("input", { id, type: "file", required, multiple: kind === "files" });
    return { input, read: () => (input.files.length ? [...input.files] : undefined) };
  }
  if (own.enum || kind === "boolean") {
    const values = own.enum ?? [true, false];
    const options = values.map((value) => h("option", { value: JSON.stringify(value) }, String(value)));
    const input = h("select", { id }, required ? null : h("option", { value: "" }, ""), options);
    return { input, read: () => (input.value === "" ? undefined : JSON.parse(input.value)) };
  }
  const shown = own.default;
  if (kind === "number" || kind === "integer") {
    const input = h("input", { id, type: "number", step: kind === "integer" ? 1 : "any", required });
    if (shown !== undefined) input.placeholder = String(shown);
    return { input, read: () => (input.value === "" ? undefined : Number(input.value)) };
  }
  if (kind === "string" || kind === "base64") {
    const input = h("input", { id, type: "text", autocomplete: "off" });
    if (shown !== undefined) input.placeholder = String(shown);
    const read = () => (input.value === "" && !required ? undefined : input.value);
    return { input, read };
  }
  const input = h("textarea", { id, rows: 3, spellcheck: "false" });
  if (required) input.value = JSON.stringify(example(api, own), null, 1);
  return { input, read: () => (input.value.trim() === "" ? undefined : parsed(name, input.value)) };
}

function parsed(name, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name} is not JSON: ${error.message}`);
  }
}

/** The fields of a body: one for each member, or one for the whole. */
export function bodyFields(api, requestBody) {
  const content = requestBody.content;
  const media = content[FORM_TYPE]?.schema?.properties ? FORM_TYPE : JSON_TYPE;
  const schema = content[media]?.schema;
  const own = resolved(api, schema);
  if (!schema) {
    const file = fieldOf(api, "body", { format: "binary" }, requestBody.required);
    return { fields: [file], whole: file };
  }
  const members = Object.entries(own.properties ?? {});
  if (own.type !== "object" || !members.length || members.length > 12) {
    const whole = fieldOf(api, "body", own, requestBody.required);
    return { fields: [whole], whole };
  }
  const required = own.required ?? [];
  const fields = members.map(([name, each]) => fieldOf(api, name, each, required.includes(name)));
  return { fields, whole: null };
}

/** The request of all fields: path, method, headers, body, and the same as a command. */
export function requestOf(path, method, parameters, body) {
  let target = path;
  const query = new URLSearchParams();
  for (const each of parameters) {
    const value = each.read();
    if (each.place === "path")
      target = target.replace(`{${each.name}}`, encodeURIComponent(value ?? ""));
    else if (each.place === "query" && value !== undefined)
      query.append(each.name, typeof value === "object" ? JSON.stringify(value) : value);
  }
  if ([...query].length) target += `?${query}`;
  const url = address(target.slice(1));
  const words = ["curl"];
  if (method !== (body.fields.length ? "post" : "get")) words.push(`-X ${method.toUpperCase()}`);
  words.push(quoted(url));
  const request = { path: target.slice(1), method: method.toUpperCase(), headers: {} };
  const sent = body.fields.map((each) => [each, each.read()]).filter(([, value]) => value !== undefined);
  if (body.whole) {
    const value = sent[0]?.[1];
    if (body.whole.isFile && value) {
      request.body = value[0];
      words.push(`--data-binary @${value[0].name}`);
    } else if (value !== undefined) json(request, words, value);
  } else if (sent.some(([each]) => each.isFile)) {
    request.body = new FormData();
    for (const [each, value] of sent) {
      const text = typeof value === "object" ? JSON.stringify(value) : value;
      for (const part of each.isFile ? value : [text]) {
        request.body.append(each.name, part);
        words.push(`-F ${quoted(`${each.name}=${each.isFile ? `@${part.name}` : part}`)}`);
      }
    }
  } else if (body.fields.length) {
    json(request, words, Object.fromEntries(sent.map(([each, value]) => [each.name, value])));
  }
  return { ...request, command: words.join(" ") };
}

function json(request, words, value) {
  request.body = JSON.stringify(value);
  request.headers["Content-Type"] = JSON_TYPE;
  words.push(`-H 'Content-Type: ${JSON_TYPE}'`, `-d ${quoted(request.body)}`);
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
