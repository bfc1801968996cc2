// A model's page "Batches": the server's explanation of its batches.

import { askJson, modelPath } from "./api.js";
import { columns, shareBar } from "./charts.js";
import { fill, h } from "./dom.js";
import { count, duration, percent } from "./format.js";
import { copyable, emptyState, isAvailable, problem } from "./parts.js";
import { timeParts } from "./traffic.js";

const EXPLAIN_EVERY_MS = 3000;
const NOT_READY = "No version is ready.";

export function batchPart(store, name, version) {
  const room = h("div", {}, h("p", { class: "hint" }, "Asking …"));
  let askedAt = -Infinity;
  let text = "";

  async function look() {
    askedAt = performance.now();
    try {
      const found = await askJson(`${modelPath(name, version)}/explain`);
      const mark = JSON.stringify(found);
      if (mark === text) return;
      text = mark;
      fill(room, explained(found));
    } catch (error) {
      if (error.message === text) return;
      text = error.message;
      fill(
        room,
        problem(error, () => ((text = ""), look())),
      );
    }
  }

  return {
    element: room,
    update() {
      if (store.link === "lost" || store.link === "connecting") return;
      const model = store.models().find((each) => each.name === name);
      if (!isAvailable(store, model, version)) {
        if (text !== NOT_READY) fill(room, emptyState(NOT_READY, "Once it is ready, its batches are explained here."));
        text = NOT_READY;
      } else if (performance.now() - askedAt > EXPLAIN_EVERY_MS) look();
    },
  };
}

function explained(found) {
  const lately = found.last_batches;
  const bar = shareBar("Time of a request by phase", (us) => duration(us / 1000));
  bar.update(explainedParts(found.mean_us));
  const change = found.change ? copyable("In config.pbtxt", "pbtxt") : null;
  change?.set(found.change);
  const reasons = Object.entries(lately?.cut_because ?? {});
  return h(
    "div",
    { class: "halves" },
    h(
      "section",
      { class: "card" },
      h("h2", {}, "Observed"),
      h("p", { class: "prose" }, found.summary),
      h("h3", {}, "Advice"),
      h("p", { class: "prose advice" }, found.advice),
      change?.element,
      found.execution &&
        h(
          "p",
          { class: "hint" },
          `Runs on ${found.execution.mode === "loop" ? "the event loop" : "threads"}: ${found.execution.reason}`,
        ),
    ),
    h(
      "section",
      { class: "card" },
      h("h2", {}, "Time by phase"),
      bar.element,
      lately?.count
        ? [
            h("h3", {}, lately.count === 1 ? "The only batch" : `The last ${lately.count} batches`),
            columns(
              "Batches by size",
              Object.entries(lately.rows).map(([rows, number]) => ({ label: rows, value: number })),
              count,
            ),
            h("h3", {}, "Why batches were closed"),
            h(
              "ul",
              { class: "reasons" },
              reasons.map(([why, number]) =>
                h("li", {}, h("b", {}, percent(number / lately.count)), ` ${why}`),
              ),
            ),
          ]
        : null,
      found.steps ? [h("h3", {}, "Steps"), found.steps.map(stepBar)] : null,
    ),
  );
}

function explainedParts({
  queue,
  compute_input: input,
  compute_infer: infer,
  compute_output: output,
}) {
  return timeParts({ queue, input, infer, output });
}

function stepBar({ model, mean_us: times }) {
  const bar = shareBar(model, (us) => duration(us / 1000));
  bar.update(explainedParts(times));
  return h(
    "div",
    { class: "step" },
    h("h4", {}, h("a", { href: `#/models/${encodeURIComponent(model)}/batches` }, model)),
    bar.element,
  );
}
