// Requests to the server. Paths are relative to the page, so that it works behind a proxy's prefix.
//
// A restricted API responds 403 and names the required header; a server with keys responds 401. Values
// that the user enters are kept in this page's memory only and are sent with every later request to
// this server.

const base = new URL(".", document.baseURI);
const keys = new Map(); // header -> value
const KEY_HEADER = "Authorization";

/** The server responded with an error status. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
    this.header = status === 403 ? (/expecting header '([^']+)'/.exec(text)?.[1] ?? "") : "";
    // No key, or one that is not valid or does not permit this: another one may.
    this.needsKey = status === 401 || (status === 403 && /^the key /.test(text));
  }
}

/** The server did not respond. */
export class Unreachable extends Error {}

/** Send this header with every request from now on. Throws for an invalid value. */
export function unlock(header, value) {
  new Headers({ [header]: value }); // throws a TypeError
  keys.set(header, value);
}

/** Send this key with every request from now on. Throws for an invalid one. */
export function useKey(key) {
  unlock(KEY_HEADER, `Bearer ${key.trim()}`);
}

/** Whether a link must be requested by the page, because the browser itself sends no headers. */
export function hasHeaders() {
  return keys.size > 0;
}

/** The required headers, for examples: names, never values. */
export function lockedHeaders() {
  return [...keys.keys()];
}

/** The address of a path on this server. */
export function address(path) {
  return new URL(path, base).href;
}

/** The path of a model, or of one of its versions. */
export function modelPath(name, version = "") {
  const place = `v2/models/${encodeURIComponent(name)}`;
  return version ? `${place}/versions/${encodeURIComponent(version)}` : place;
}

/** Send a request; the result is a successful Response. Throws Refused or Unreachable. */
export async function ask(path, { method = "GET", body, headers = {}, seconds = 0, signal } = {}) {
  const stop = new AbortController();
  const timer = seconds ? setTimeout(() => stop.abort(), seconds * 1000) : 0;
  signal?.addEventListener("abort", () => stop.abort());
  let answer;
  try {
    answer = await fetch(new URL(path, base), {
      method,
      body,
      headers: { ...Object.fromEntries(keys), ...headers },
      signal: stop.signal,
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable(`The server does not respond (${error.message}).`);
  } finally {
    clearTimeout(timer);
  }
  if (!answer.ok) throw new Refused(answer.status, await said(answer));
  return answer;
}

/** Request JSON. */
export async function askJson(path, options) {
  const answer = await ask(path, options);
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

/** Send JSON and read JSON. */
export function post(path, document, options = {}) {
  return askJson(path, { method: "POST", body: JSON.stringify(document), ...options });
}

/** The text of an error, in any format. */
async function said(answer) {
  const text = await answer.text().catch(() => "");
  try {
    const found = JSON.parse(text.replace(/^data: /, "")).error;
    if (typeof found === "string" && found) return found;
    if (typeof found?.message === "string") return found.message; // of OpenAI's API
  } catch {
    // Not from Shoal: perhaps from a proxy.
  }
  return `${answer.status} ${answer.statusText || "error"}`;
}

/** The events of a stream, `data: {…}`, each parsed once it is complete. */
export async function* events(answer) {
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let waiting = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      waiting += decoder.decode(value ?? new Uint8Array(), { stream: !done });
      const parts = waiting.split(/\r?\n\r?\n/);
      waiting = done ? "" : parts.pop();
      for (const part of parts) {
        const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
        if (data && data !== "[DONE]") yield JSON.parse(data); // the end, in OpenAI's API
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
