// Recent errors, as sent to clients.

import { fill, h } from "./dom.js";
import { ago } from "./format.js";
import { emptyState, hasFailed } from "./parts.js";

const MOST_NAMES = 5;

export function errorPage(store) {
  const room = h("div", {});
  let seen = "";
  let drawnAt = 0;
  return {
    element: h(
      "div",
      { class: "page" },
      h("h1", {}, "Recent errors"),
      h(
        "p",
        { class: "hint" },
        "The newest hundred errors that this process sent to clients, over HTTP and gRPC. Equal errors are counted together.",
      ),
      room,
    ),
    title: "Errors",
    update() {
      if (!store.state) return;
      const mark = errorMark(store);
      const now = store.state.time_ms;
      if (mark === seen && now - drawnAt < 10_000) return;
      if (room.contains(document.activeElement) && mark === seen) return;
      seen = mark;
      drawnAt = now;
      fill(room, errorList(store, now));
    },
  };
}

/** Changes when `errorList` shows something else, apart from times. */
export function errorMark(store) {
  const newest = [...store.errors.values()].reduce(
    (most, entry) => Math.max(most, entry.number),
    0,
  );
  return `${newest} ${store.changes}`;
}

/** Errors as a list, the newest first. */
export function errorList(store, now, most = Infinity) {
  const entries = [...store.errors.values()].reverse().slice(0, most);
  if (!entries.length)
    return emptyState(
      "No request has failed.",
      "Rejected requests, and requests that fail in a model, are listed here.",
      failedModels(store.models().filter(hasFailed)),
    );
  return h(
    "ol",
    { class: "error-list" },
    entries.map((entry) =>
      h(
        "li",
        { class: "card error-item" },
        h(
          "div",
          { class: "error-head" },
          h("span", { class: `pill ${isServerFault(entry) ? "bad" : "warn"}` }, entry.status),
          h("code", {}, entry.place),
          entry.model &&
            h("a", { href: `#/models/${encodeURIComponent(entry.model)}` }, entry.model),
          entry.count > 1 &&
            h("span", { class: "times" }, `${entry.count.toLocaleString("en")} times`),
          h("time", { datetime: new Date(entry.last_ms).toISOString() }, ago(entry.last_ms, now)),
        ),
        h("p", { class: "error-text" }, entry.text),
      ),
    ),
  );
}

/** Models that could not be loaded: clients may have noticed nothing yet. */
function failedModels(models) {
  if (!models.length) return null;
  const links = models
    .slice(0, MOST_NAMES)
    .map(({ name }) => [h("a", { href: `#/models/${encodeURIComponent(name)}` }, name), ", "]);
  const more = models.length - links.length;
  links.at(-1)[1] = more > 0 ? ` and ${more} more.` : ".";
  return [h("br"), models.length === 1 ? "A model is unavailable: " : "Models are unavailable: ", links];
}

function isServerFault({ protocol, status }) {
  return protocol === "HTTP"
    ? Number(status) >= 500
    : ["INTERNAL", "UNKNOWN", "UNAVAILABLE"].includes(status);
}
