// The reply to a request: its status, its time, and its body as text, JSON, an image or a stream.

import { ask, Refused } from "./api.js";
import { fill, h } from "./dom.js";

const MOST_SHOWN = 200_000; // characters
let shownImage = "";

/** Send a request and show what comes back. Never throws. */
export async function showReply(place, { path, method, headers, body }) {
  const begun = performance.now();
  const line = (text, good) => {
    const took = `${Math.round(performance.now() - begun)} ms`;
    return h("p", {}, h("b", { class: `pill ${good ? "good" : "bad"}` }, text), " ", took);
  };
  fill(place, h("p", { class: "hint" }, "Waiting …"));
  try {
    const answer = await ask(path, { method, headers, body });
    const kind = (answer.headers.get("content-type") ?? "").split(";")[0];
    const text = h("pre", { class: "snippet" });
    if (kind.startsWith("image/")) {
      URL.revokeObjectURL(shownImage);
      shownImage = URL.createObjectURL(await answer.blob());
      fill(place, line(`${answer.status}`, true), h("img", { src: shownImage, alt: "The reply" }));
    } else if (kind === "text/event-stream") {
      fill(place, line(`${answer.status}`, true), text);
      for await (const piece of pieces(answer.body)) text.append(piece);
      fill(place, line(`${answer.status}, complete`, true), text);
    } else if (kind === "application/json" || kind.startsWith("text/") || kind === "") {
      text.textContent = pretty(await answer.text(), kind);
      fill(place, line(`${answer.status}`, true), text);
    } else {
      const size = (await answer.blob()).size;
      fill(place, line(`${answer.status}`, true), h("p", {}, `${kind}, ${size} bytes`));
    }
  } catch (error) {
    const status = error instanceof Refused ? `${error.status}` : "No answer";
    fill(place, line(status, false), h("p", { class: "notice bad" }, error.message));
  }
}

async function* pieces(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

function pretty(text, kind) {
  let shown = text;
  if (kind === "application/json" && text.length < MOST_SHOWN) {
    try {
      shown = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // NaN is no JSON for browsers: then as it was sent.
    }
  }
  return shown.length > MOST_SHOWN ? `${shown.slice(0, MOST_SHOWN)} …` : shown;
}
