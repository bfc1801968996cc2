// "Try it": a form for a model, made from its metadata, and the rendered response.
//
//     metadata, config --> form --> request --> response, and the same request as code

import { address, ask, events, lockedHeaders, modelPath, Refused } from "./api.js";
import { announce, fill, h, setShown } from "./dom.js";
import { drawOutput } from "./draw.js";
import { duration } from "./format.js";
import { copyable, field, problem } from "./parts.js";
import {
  curlInfer,
  curlStream,
  elements,
  generateBody,
  pythonInfer,
  pythonStream,
} from "./snippets.js";
import { TensorField } from "./tensorfield.js";
import { NEEDS_BINARY, inferBody, readAnswer } from "./tensors.js";

const MOST_JSON = 4096; // elements; more are sent in binary
const MOST_CLASSES = 10;

/** The address of this server, for snippets: { origin, host }. */
export function whereabouts() {
  const origin = address("").replace(/\/$/, "");
  const bare = origin.replace(/^http:\/\//, "");
  return { origin, host: origin.startsWith("http://") && !bare.includes("/") ? bare : origin };
}

/** The requested outputs: the top classes for an output with labels. */
export function wantedOutputs(metadata, config) {
  return metadata.outputs.map(({ name, datatype, shape }) => {
    const declared = config?.output?.find((output) => output.name === name);
    const labelled = Boolean(declared?.label_filename) && datatype !== "BYTES";
    const last = shape[shape.length - 1];
    return {
      name,
      datatype,
      classes: labelled ? Math.min(MOST_CLASSES, last > 0 ? last : MOST_CLASSES) : 0,
    };
  });
}

/** The form for tensors. */
export function tensorForm({ name, version, metadata, config }) {
  const decoupled = Boolean(config?.model_transaction_policy?.decoupled);
  const outputs = wantedOutputs(metadata, config);
  const optional = new Set(
    (config?.input ?? []).filter((input) => input.optional).map((input) => input.name),
  );
  const curl = copyable("curl", "sh");
  const python = copyable("Python", "python");
  const answer = h("div", { class: "answer", "aria-live": "polite", "aria-busy": "false" });
  const send = h("button", { class: "primary" }, decoupled ? "Send and stream" : "Send");
  const stop = h("button", { type: "button", class: "quiet", hidden: true }, "Stop");
  const sequence = config?.sequence_batching ? sequenceFields() : null;
  let running = null;
  let ready = false; // whether all fields exist

  const fields = metadata.inputs.map(
    (spec, place) =>
      new TensorField(
        {
          ...spec,
          place,
          optional: optional.has(spec.name),
          batched: (config?.max_batch_size ?? 0) > 0,
        },
        () => refresh(),
      ),
  );
  const missing = metadata.inputs.length
    ? null
    : h("p", { class: "hint" }, "This model has no inputs.");
  const form = h(
    "form",
    { class: "try-form", novalidate: true },
    missing,
    fields.map((each) => each.element),
    sequence?.element,
    h("div", { class: "actions" }, send, stop),
  );

  function request() {
    const inputs = fields.filter((each) => each.sent).map((each) => each.tensor());
    const { origin, host } = whereabouts();
    return {
      origin,
      host,
      path: `/${modelPath(name, version)}`,
      model: name,
      version,
      inputs,
      outputs,
      parameters: sequence?.parameters() ?? {},
      locked: lockedHeaders(),
    };
  }

  function refresh() {
    if (!ready) return;
    try {
      const asked = request();
      curl.set(decoupled ? curlStream(asked) : curlInfer(asked));
      python.set(decoupled ? pythonStream(asked) : pythonInfer(asked));
    } catch (error) {
      curl.set(`# ${error.message}`);
      python.set(`# ${error.message}`);
    }
  }

  async function submit(event) {
    event?.preventDefault();
    running?.abort();
    let asked;
    for (const each of fields) {
      try {
        if (each.sent) each.tensor();
        each.complain("");
      } catch (error) {
        each.complain(error.message);
        each.focus();
        return;
      }
    }
    try {
      asked = request();
    } catch (error) {
      fill(answer, problem(error));
      return;
    }
    const mine = (running = new AbortController());
    answer.setAttribute("aria-busy", "true");
    setShown(stop, true);
    const began = performance.now();
    try {
      if (decoupled) await stream(asked, answer, mine.signal, began);
      else await infer(asked, answer, mine.signal, began);
    } catch (error) {
      if (!mine.signal.aborted) {
        const shown = problem(error, () => submit());
        if (decoupled && answer.querySelector(".stream")) answer.append(shown);
        else fill(answer, shown);
        announce(`The server returned an error: ${error.message}`);
      }
    } finally {
      if (running === mine) {
        running = null;
        answer.setAttribute("aria-busy", "false");
        setShown(stop, false);
        refresh();
      }
    }
  }

  form.addEventListener("submit", submit);
  sequence?.element.addEventListener("input", refresh);
  stop.addEventListener("click", () => {
    running?.abort();
    answer.append(h("p", { class: "hint" }, "Stopped."));
  });
  for (const each of fields) each.drawn = () => !decoupled && fields.length === 1 && submit();
  ready = true;
  refresh();

  return h(
    "div",
    { class: "try" },
    h("div", { class: "card" }, h("h2", {}, "Inputs"), form),
    h(
      "div",
      { class: "card" },
      h("h2", {}, "Answer"),
      answer,
      h(
        "p",
        { class: "hint when-empty" },
        decoupled
          ? "Send the inputs: responses appear here as they arrive."
          : "Send the inputs: the outputs appear here.",
      ),
    ),
    h(
      "div",
      { class: "card snippets" },
      h("h2", {}, "From a terminal"),
      h("p", { class: "hint" }, "The same request as in the form."),
      curl.element,
      python.element,
    ),
  );
}

async function infer({ path, inputs, outputs, parameters }, place, signal, began) {
  const binary = elements(inputs) > MOST_JSON;
  const { body, headers } = inferBody(inputs, outputs, { binary, parameters });
  const answer = await ask(`${path.slice(1)}/infer`, { method: "POST", body, headers, signal });
  const buffer = await answer.arrayBuffer();
  const took = performance.now() - began;
  const found = readAnswer(buffer, answer.headers.get("Inference-Header-Content-Length"));
  const wanted = new Map(outputs.map((output) => [output.name, output.classes]));
  fill(
    place,
    h("p", { class: "took" }, `Response of version ${found.model_version} in ${duration(took)}.`),
    found.outputs.map((output) =>
      drawOutput({ ...output, classes: output.datatype === "BYTES" && wanted.get(output.name) }),
    ),
  );
  announce(`Response in ${duration(took)}`);
}

async function stream({ path, inputs }, place, signal, began) {
  if (inputs.some((input) => NEEDS_BINARY.has(input.datatype))) {
    throw new Error(
      "FP16 and BF16 cannot be written as JSON, which streams over HTTP use: use gRPC for this model.",
    );
  }
  const took = h("p", { class: "took" }, "Waiting for the first response …");
  const text = h("p", { class: "text streamed" });
  const rows = h("ol", { class: "events", tabindex: "0", "aria-label": "Responses" });
  setShown(text, false);
  fill(place, h("div", { class: "stream" }, took, text, rows));
  const answer = await ask(`${path.slice(1)}/generate_stream`, {
    method: "POST",
    body: generateBody(inputs),
    headers: { "Content-Type": "application/json" },
    signal,
  });
  let count = 0;
  for await (const event of events(answer)) {
    if (typeof event.error === "string") throw new Refused(answer.status, event.error);
    count += 1;
    const { model_name: _, model_version: version, id: __, ...outputs } = event;
    const pieces = Object.values(outputs).filter((value) => typeof value === "string");
    if (pieces.length) {
      setShown(text, true);
      text.append(document.createTextNode(pieces[0]));
    }
    if (rows.children.length < 200) {
      rows.append(
        h(
          "li",
          {},
          Object.entries(outputs).map(([key, value]) =>
            h(
              "span",
              { class: "event" },
              h("b", {}, key),
              " ",
              Array.isArray(value) ? JSON.stringify(value).slice(0, 400) : String(value),
            ),
          ),
        ),
      );
    }
    took.textContent = `Version ${version}: ${count} response${count === 1 ? "" : "s"} in ${duration(performance.now() - began)}.`;
  }
  if (!count)
    took.textContent = `The stream ended without a response, in ${duration(performance.now() - began)}.`;
  announce(`${count} responses`);
}

function sequenceFields() {
  const id = h("input", { type: "number", min: "1", value: 1 });
  const start = h("input", { type: "checkbox", id: "sequence-start", checked: true });
  const end = h("input", { type: "checkbox", id: "sequence-end", checked: true });
  start.checked = end.checked = true;
  return {
    element: h(
      "fieldset",
      { class: "tensor" },
      h("legend", {}, "Sequence"),
      h(
        "div",
        { class: "tensor-row" },
        field("Id", id),
        h("div", { class: "check" }, start, h("label", { for: "sequence-start" }, "Starts here")),
        h("div", { class: "check" }, end, h("label", { for: "sequence-end" }, "Ends here")),
      ),
    ),
    parameters: () => ({
      sequence_id: Math.max(1, Math.round(Number(id.value) || 1)),
      sequence_start: start.checked,
      sequence_end: end.checked,
    }),
  };
}
