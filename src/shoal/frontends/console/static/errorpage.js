// Recent errors, as sent to clients.

import { fill, h } from "./dom.js";
import { ago } from "./format.js";
import { emptyState } from "./parts.js";

export function errorPage(store) {
  const room = h("div", {});
  let seen = -1;
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
      const newest = [...store.errors.values()].reduce(
        (most, entry) => Math.max(most, entry.number),
        0,
      );
      const now = store.state.time_ms;
      if (newest === seen && now - drawnAt < 10_000) return;
      if (room.contains(document.activeElement) && newest === seen) return;
      seen = newest;
      drawnAt = now;
      fill(room, errorList([...store.errors.values()].reverse(), now));
    },
  };
}

/** Errors as a list, the newest first. */
export function errorList(entries, now) {
  if (!entries.length)
    return emptyState(
      "No errors.",
      "Rejected requests, and requests that fail in a model, are listed here.",
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

function isServerFault({ protocol, status }) {
  return protocol === "HTTP"
    ? Number(status) >= 500
    : ["INTERNAL", "UNKNOWN", "UNAVAILABLE"].includes(status);
}
