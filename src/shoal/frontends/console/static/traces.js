// A model's page "Traces": the way of single requests through the server, with their times as bars.

import { Refused, ask, askJson, modelPath } from "./api.js";
import { announce, fill, h } from "./dom.js";
import { ago, duration } from "./format.js";
import { emptyState, isAvailable, problem } from "./parts.js";

const RECORDED = 20; // requests
const POLL_MS = 1000;

// From one moment to the next: [from, to, label, class]. A frontend's moments end in these words.
const FRONTEND = [
  ["RECV_START", "RECV_END", "Receive", "receive"],
  ["SEND_START", "SEND_END", "Send", "send"],
];
const MODEL = [
  ["QUEUE_START", "COMPUTE_START", "Queue", "queue"],
  ["COMPUTE_START", "COMPUTE_INPUT_END", "Input", "input"],
  ["COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "Compute", "infer"],
  ["COMPUTE_OUTPUT_START", "COMPUTE_END", "Output", "output"],
];

export function tracePart(store, name) {
  const button = h("button", { type: "button", class: "primary" }, "");
  const words = h("p", { class: "hint" });
  const notice = h("div", {});
  const room = h("div", {});
  const element = h(
    "div",
    {},
    h("div", { class: "card trace-head" }, h("div", { class: "actions" }, button), words, notice),
    room,
  );
  const path = `${modelPath(name)}/trace/recording`;
  let remaining = 0;
  let askedAt = -Infinity;
  let seen = "";
  let wanted = true; // ask once when the page opens, and while requests are recorded

  function show(found) {
    const mark = JSON.stringify(found);
    remaining = found.remaining;
    wanted = remaining > 0;
    button.textContent = remaining
      ? `Waiting for ${remaining} more requests: stop`
      : `Record the next ${RECORDED} requests`;
    words.textContent = remaining
      ? "Send requests to the model, from a program or on the page “Try it”. Recording ends after a minute."
      : "Recorded in memory, without changes to the trace settings. Meanwhile requests take a little longer.";
    if (mark === seen) return;
    seen = mark;
    fill(notice);
    fill(
      room,
      found.traces.length
        ? [legend(), h("ol", { class: "traces" }, found.traces.map(drawn))]
        : emptyState(
            "No request has been recorded.",
            "A trace shows when a request was received, how long it waited, and when each model computed.",
          ),
    );
  }

  async function look(request = null) {
    askedAt = performance.now();
    try {
      const answer = request
        ? await (
            await ask(path, {
              method: "POST",
              body: JSON.stringify(request),
              headers: { "Content-Type": "application/json" },
            })
          ).json()
        : await askJson(path);
      show(answer);
    } catch (error) {
      wanted = !(error instanceof Refused);
      fill(
        notice,
        problem(error, () => look(request)),
      );
    }
  }

  button.addEventListener("click", () => {
    announce(remaining ? "Recording ends" : "Recording begins");
    look({ count: remaining ? 0 : RECORDED });
  });
  return {
    element,
    update() {
      if (store.link === "lost" || store.link === "connecting") return;
      const model = store.models().find((each) => each.name === name);
      if (!isAvailable(store, model)) {
        if (seen !== "unavailable")
          fill(room, emptyState("No version is ready.", "Once it is, requests can be recorded."));
        seen = "unavailable";
        button.hidden = true;
        return;
      }
      if (seen === "unavailable") wanted = true;
      button.hidden = false;
      if (wanted && performance.now() - askedAt >= POLL_MS) look();
    },
  };
}

/** The bars of a trace: [{ label, parts: [{ label, kind, start, end }] }], times in microseconds. */
export function traceRows(trace) {
  const found = [{ label: "Frontend", depth: 0, parts: parts(FRONTEND, shortened(trace.times_us)) }];
  const depths = new Map();
  for (const request of trace.requests) {
    const depth = (depths.get(request.parent_id) ?? -1) + 1;
    depths.set(request.id, depth);
    const times = request.times_us;
    const phases = parts(MODEL, times);
    // A call or an ensemble does not compute itself: its requests follow.
    const whole = parts([["REQUEST_START", "REQUEST_END", "Whole", "whole"]], times);
    found.push({
      label: `${request.model_name}, version ${request.model_version}`,
      depth,
      error: request.error,
      parts: phases.length ? phases : whole,
    });
  }
  return found.filter((row) => row.parts.length);
}

/** HTTP_RECV_START and GRPC_WAITREAD_START are the same moment for this page. */
function shortened(times) {
  const found = {};
  for (const [name, us] of Object.entries(times)) {
    const word = name
      .replace(/^[A-Z]+_/, "")
      .replace("WAITREAD", "RECV")
      .replace("INFER_RESPONSE_COMPLETE", "");
    found[word] ??= us;
  }
  return found;
}

function parts(phases, times) {
  return phases
    .filter(([from, to]) => from in times && to in times)
    .map(([from, to, label, kind]) => ({ label, kind, start: times[from], end: times[to] }));
}

function legend() {
  const kinds = [["", "", "Receive and send", "receive"], ...MODEL].map(([, , label, kind]) =>
    h("li", {}, h("span", { class: `swatch trace-${kind}`, "aria-hidden": "true" }), label),
  );
  return h("ul", { class: "legend trace-legend", "aria-label": "Colours" }, kinds);
}

function drawn(trace) {
  const total = trace.duration_us || 1;
  const id = trace.requests.find((request) => request.request_id)?.request_id;
  return h(
    "li",
    { class: "card trace" },
    h(
      "div",
      { class: "trace-title" },
      h("b", {}, duration(trace.duration_us / 1000)),
      id && h("code", {}, id),
      trace.error && h("span", { class: "pill bad" }, "failed"),
      h("time", { datetime: new Date(trace.start_ms).toISOString() }, ago(trace.start_ms, Date.now())),
    ),
    trace.error && h("p", { class: "error-text" }, trace.error),
    h(
      "ul",
      { class: "trace-rows" },
      traceRows(trace).map((row) => rowDrawn(row, total)),
    ),
  );
}

function rowDrawn({ label, depth, parts: phases }, total) {
  const told = phases.map((part) => `${part.label} ${duration((part.end - part.start) / 1000)}`);
  return h(
    "li",
    {},
    h("span", { class: `trace-row-name depth-${Math.min(depth, 3)}` }, label),
    h(
      "span",
      { class: "trace-bars", role: "img", "aria-label": told.join(", ") },
      phases.map((part) => {
        const bar = h("span", {
          class: `trace-part trace-${part.kind}`,
          title: `${part.label}: ${duration((part.end - part.start) / 1000)}`,
        });
        bar.style.left = `${(100 * part.start) / total}%`;
        bar.style.width = `${(100 * (part.end - part.start)) / total}%`;
        return bar;
      }),
    ),
    h("span", { class: "trace-row-words" }, told.join(" · ")),
  );
}
