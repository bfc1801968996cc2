// Asking the server. Paths are relative to the page, so that it works behind a proxy's prefix.
//
// What is restricted answers 403 and names the header it wants. Values that somebody enters are
// kept in this page's memory alone and go with every later request to this server.

const base = new URL(".", document.baseURI);
const keys = new Map(); // header -> value

/** The server answered, and not with success. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
    this.header = status === 403 ? (/expecting header '([^']+)'/.exec(text)?.[1] ?? "") : "";
  }
}

/** Nobody answered. */
export class Unreachable extends Error {}

/** Send this header with every request from now on. Throws for what no header can carry. */
export function unlock(header, value) {
  new Headers({ [header]: value }); // throws a TypeError in the browser's words
  keys.set(header, value);
}

/** The headers that have to be brought along, for examples: names, never values. */
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

/** Ask; the answer is a Response with success. Throws Refused or Unreachable. */
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
    throw new Unreachable(`The server does not answer (${error.message}).`);
  } finally {
    clearTimeout(timer);
  }
  if (!answer.ok) throw new Refused(answer.status, await said(answer));
  return answer;
}

/** Ask for JSON. */
export async function askJson(path, options) {
  const answer = await ask(path, options);
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

/** Send JSON and read JSON. */
export function post(path, document, options = {}) {
  return askJson(path, { method: "POST", body: JSON.stringify(document), ...options });
}

/** The words of an error, whatever form they came in. */
async function said(answer) {
  const text = await answer.text().catch(() => "");
  try {
    const found = JSON.parse(text.replace(/^data: /, "")).error;
    if (typeof found === "string" && found) return found;
  } catch {
    // Not ours: perhaps of a proxy in between.
  }
  return `${answer.status} ${answer.statusText || "error"}`;
}

/** The events of a stream, `data: {…}`, each parsed as soon as it is whole. */
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
        if (lines.length)
          yield JSON.parse(lines.map((line) => line.slice(5).trimStart()).join("\n"));
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
