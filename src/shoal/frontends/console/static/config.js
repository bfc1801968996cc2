// A model's page "Config": the effective configuration.

import { askJson, modelPath } from "./api.js";
import { announce, fill, h } from "./dom.js";
import { copyable, emptyState, isAvailable, problem } from "./parts.js";

// Shown even when empty: their presence has a meaning.
const KEPT_EMPTY = new Set(["dynamic_batching", "sequence_batching", "ensemble_scheduling"]);

export function configPart(store, name, version) {
  const room = h("div", { class: "card" }, h("p", { class: "hint" }, "Asking …"));
  let made = "";

  async function make() {
    try {
      const config = await askJson(`${modelPath(name, version)}/config`);
      const whole = h("input", { type: "checkbox", id: "whole-config" });
      const lines = copyable("Effective configuration", "json", "h2");
      const write = () => lines.set(written(whole.checked ? config : withoutDefaults(config)));
      whole.addEventListener("change", () => {
        write();
        announce(whole.checked ? "All defaults are shown" : "Only non-default values are shown");
      });
      write();
      fill(
        room,
        h(
          "p",
          { class: "hint" },
          "The values of config.pbtxt, of the model file, and the server's defaults.",
        ),
        h(
          "div",
          { class: "check" },
          whole,
          h("label", { for: "whole-config" }, "Show all defaults"),
        ),
        lines.element,
      );
    } catch (error) {
      fill(room, problem(error, make));
    }
  }

  return {
    element: room,
    stateChanged(model) {
      if (store.link === "connecting") return; // no data yet
      const mark = JSON.stringify(model?.versions ?? null);
      if (mark !== made) {
        made = mark;
        if (isAvailable(store, model, version)) make();
        else
          fill(
            room,
            emptyState(
              "No version is ready.",
              "Once the model is ready, its effective configuration is shown here.",
            ),
          );
      }
    },
  };
}

/** A config without empty, zero and false values, which are most of it. */
export function withoutDefaults(value) {
  if (Array.isArray(value)) return value.map(withoutDefaults);
  if (value === null || typeof value !== "object") return value;
  const kept = {};
  for (const [key, each] of Object.entries(value)) {
    const inner = withoutDefaults(each);
    const nothing = inner === "" || inner === 0 || inner === false || inner === null;
    const hollow = typeof inner === "object" && inner !== null && Object.keys(inner).length === 0;
    const kind = typeof inner === "string" && /_(NONE|DEFAULT|INVALID|UNSPECIFIED)$/.test(inner);
    if (nothing || kind || (hollow && !KEPT_EMPTY.has(key))) continue;
    kept[key] = inner;
  }
  return kept;
}

/** Readable JSON: a list of numbers or texts on one line. */
export function written(value) {
  return JSON.stringify(value, null, 2).replace(/\[\n[^[\]{}]*?\n\s*\]/g, (list) =>
    list.replace(/\n\s*/g, " ").replace("[ ", "[").replace(/ \]$/, "]"),
  );
}
