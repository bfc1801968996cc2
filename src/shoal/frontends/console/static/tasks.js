// Forms for models with a task: a photo, a question, a caption, sentences, documents.
//
// The task is in the model's config (`parameters.task`); its operation is the last part of the
// path that the form sends to. An unknown task gets a field for JSON.

import { ask, askJson, events, lockedHeaders, modelPath, Refused } from "./api.js";
import { announce, fill, h } from "./dom.js";
import { bars, heatMap, marked, table } from "./draw.js";
import { duration, percent } from "./format.js";
import { dropZone } from "./dropzone.js";
import { copyable, field, problem } from "./parts.js";
import { curlFile, curlJson, pythonFile, pythonJson, pythonTask } from "./snippets.js";
import { whereabouts } from "./tryit.js";

const PASSAGE =
  "A shoal is a group of fish that stay together for social reasons. When all of them swim in the same direction in a coordinated way, they are called a school. Fish gain from it: a shoal finds food sooner and is better at avoiding predators.";

const FORMS = {
  "image-classification": classifyForm,
  "question-answering": answerForm,
  "image-to-text": captionForm,
  "zero-shot-image-classification": matchForm,
  transcription: transcribeForm,
  "sentence-embedding": embedForm,
  "text-classification": predictForm,
  "token-classification": tagForm,
  rerank: rerankForm,
};

/** The task of a model's config, or an empty text. */
export function taskOf(config) {
  return config?.parameters?.task?.string_value ?? "";
}

/** The form for a model's task. */
export function taskForm(model) {
  return (FORMS[taskOf(model.config)] ?? jsonForm)(model);
}

/** Shared by all forms: the response, the code snippets, and one request at a time. */
function workbench(model, { verb, title, controls, lines, hint }) {
  const answer = h("div", { class: "answer", "aria-live": "polite", "aria-busy": "false" });
  const curl = copyable("curl", "sh");
  const python = copyable("Python", "python");
  const path = modelPath(model.name, model.version);
  let running = null;

  function refresh() {
    const shared = { ...whereabouts(), path: `/${path}`, verb, locked: lockedHeaders() };
    const made = lines(shared);
    curl.set(made.curl);
    python.set(made.python);
  }

  async function run(work) {
    running?.abort();
    const mine = (running = new AbortController());
    answer.setAttribute("aria-busy", "true");
    const began = performance.now();
    try {
      const drawn = await work(path, mine.signal, () => duration(performance.now() - began));
      if (drawn && !mine.signal.aborted) {
        fill(
          answer,
          h("p", { class: "took" }, `Response in ${duration(performance.now() - began)}.`),
          drawn,
        );
        announce("Answered");
      }
    } catch (error) {
      if (mine.signal.aborted) return;
      fill(
        answer,
        problem(error, () => run(work)),
      );
      announce(`The server returned an error: ${error.message}`);
    } finally {
      if (running === mine) {
        running = null;
        answer.setAttribute("aria-busy", "false");
        refresh();
      }
    }
  }

  const element = h(
    "div",
    { class: "try" },
    h("div", { class: "card" }, h("h2", {}, title), controls),
    h(
      "div",
      { class: "card" },
      h("h2", {}, "Answer"),
      answer,
      h("p", { class: "hint when-empty" }, hint),
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
  refresh();
  const clear = () => {
    running?.abort();
    fill(answer);
  };
  return { element, answer, refresh, run, clear };
}

// ---- photos

function fileForm(
  model,
  {
    verb,
    title,
    hint,
    button,
    label = "or drop a photo here",
    kind = "image",
    query = () => "",
    fields = [],
    shown,
    work,
  },
) {
  let file = null;
  const send = h("button", { type: "button", class: "primary", disabled: true }, button);
  const zone = dropZone({
    label,
    kind,
    take(chosen) {
      file = chosen;
      send.disabled = !file;
      bench.refresh();
      if (!file) {
        bench.clear();
        return;
      }
      bench.run((path, signal, took) => work(path, file, signal, took, bench.answer));
    },
  });
  const bench = workbench(model, {
    verb,
    title,
    hint,
    controls: [fields, zone, h("div", { class: "actions" }, send)],
    lines: (shared) => ({
      curl: curlFile({ ...shared, query: query(), file: file?.name }),
      python: pythonTask({
        ...shared,
        query: query().includes("stream") ? "" : query(), // the lines read one response
        source: pythonFile(file?.name),
        shown,
      }),
    }),
  });
  for (const one of fields) one.addEventListener("input", () => bench.refresh());
  send.addEventListener("click", () =>
    bench.run((path, signal, took) => work(path, file, signal, took, bench.answer)),
  );
  return bench.element;
}

function photo(file) {
  return {
    method: "POST",
    body: file,
    headers: { "Content-Type": file.type || "application/octet-stream" },
  };
}

function classifyForm(model) {
  return fileForm(model, {
    verb: "classify",
    title: "A photo",
    button: "Classify",
    hint: "Choose a photo: its labels appear here.",
    shown:
      'for label in found["images"][0]["labels"]:\n    print(f"{label[\'score\']:.3f} {label[\'label\']}")',
    async work(path, file, signal) {
      const found = await askJson(`${path}/classify`, { ...photo(file), signal });
      return found.images.map(({ file: name, labels, error }, at) =>
        error
          ? problem(new Error(error))
          : bars(labels, found.images.length > 1 ? name || `Picture ${at + 1}` : ""),
      );
    },
  });
}

function matchForm(model) {
  const labels = h("input", { type: "text", value: "a cat, a dog, a fish", autocomplete: "off" });
  const query = () => `?labels=${encodeURIComponent(labels.value)}`;
  return fileForm(model, {
    verb: "match",
    title: "A photo and labels",
    button: "Match",
    fields: [field("Labels", labels, "Separated by commas.")],
    query,
    hint: "Choose a photo: how well each label fits appears here.",
    shown:
      'for label in found["images"][0]["labels"]:\n    print(f"{label[\'score\']:.3f} {label[\'label\']}")',
    async work(path, file, signal) {
      const found = await askJson(`${path}/match${query()}`, { ...photo(file), signal });
      return found.images.map(({ labels }) => bars(labels));
    },
  });
}

function transcribeForm(model) {
  return fileForm(model, {
    verb: "transcribe",
    title: "Speech",
    button: "Transcribe",
    label: "or drop a sound file here",
    kind: "sound",
    hint: "Record something, or choose a WAV, FLAC, OGG or MP3 file: its words appear here.",
    shown: 'print(found["text"])',
    async work(path, file, signal) {
      const found = await askJson(`${path}/transcribe`, { ...photo(file), signal });
      return [
        h("p", { class: "text" }, found.text || "No words were found."),
        h("p", { class: "hint" }, `Language: ${found.language}, ${found.duration} s of sound.`),
      ];
    },
  });
}

function captionForm(model) {
  return fileForm(model, {
    verb: "caption",
    title: "A photo",
    button: "Describe",
    query: () => "?stream=true",
    hint: "Choose a photo: its caption appears here, word by word.",
    shown: 'print(found["captions"][0]["caption"])',
    async work(path, file, signal, took, answer) {
      const answered = await ask(`${path}/caption?stream=true`, { ...photo(file), signal });
      const text = h("p", { class: "text streamed caption" });
      const note = h("p", { class: "took" }, "Processing the photo …");
      fill(answer, note, text);
      for await (const event of events(answered)) {
        if (typeof event.error === "string") throw new Refused(answered.status, event.error);
        if (typeof event.caption === "string") text.textContent = event.caption;
        else if (typeof event.text === "string") text.append(document.createTextNode(event.text));
        note.textContent = `Described in ${took()}.`;
      }
      announce(text.textContent);
      return null;
    },
  });
}

// ---- texts

/** A form that sends a JSON document and draws the response. */
function textForm(model, { verb, title, hint, button, controls, document, shown, draw }) {
  const form = h(
    "form",
    { class: "try-form" },
    controls,
    h("div", { class: "actions" }, h("button", { class: "primary" }, button)),
  );
  const bench = workbench(model, {
    verb,
    title,
    hint,
    controls: form,
    lines: (shared) => ({
      curl: curlJson({ ...shared, document: document() }),
      python: pythonTask({ ...shared, source: pythonJson(document()), shown }),
    }),
  });
  form.addEventListener("input", () => bench.refresh());
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const asked = document();
    bench.run(async (path, signal) => {
      const found = await askJson(`${path}/${verb}`, {
        method: "POST",
        body: JSON.stringify(asked),
        headers: { "Content-Type": "application/json" },
        signal,
      });
      return draw(found, asked);
    });
  });
  return bench.element;
}

/** The lines of a text area that are not empty. */
function lines(area) {
  return area.value.split("\n").filter((line) => line.trim());
}

function answerForm(model) {
  const text = h("textarea", { rows: 7, value: PASSAGE, maxlength: 100000 });
  const question = h("input", {
    type: "text",
    value: "When are fish called a school?",
    autocomplete: "off",
  });
  return textForm(model, {
    verb: "answer",
    title: "Question about a text",
    hint: "Ask a question: the answer is marked in the text.",
    button: "Ask",
    controls: [field("Text", text), field("Question", question)],
    document: () => ({ text: text.value, question: question.value }),
    shown: 'print(found["answer"], found["score"])',
    draw: (found, asked) => answerDrawn(found, asked.text),
  });
}

/** The answer marked in the text; the best candidate if the score is below the threshold. */
function answerDrawn({ answer, score, start, end, best }, text) {
  const sure = typeof score === "number" ? `Confidence: ${percent(score)}.` : "";
  const guess = best
    ? ` Best candidate: “${best.answer}”, confidence ${percent(best.score)}.`
    : "";
  const [from, to] = best ? [best.start, best.end] : [start, end];
  return [
    h("p", { class: "headline" }, answer || "No answer"),
    sure + guess && h("p", { class: "hint" }, sure + guess),
    Number.isInteger(from) && Number.isInteger(to) && marked(text, from, to),
  ];
}

function embedForm(model) {
  const text = h("textarea", {
    rows: 5,
    value: "A shoal of fish swims by.\nMany fish swim together.\nThe train leaves at noon.",
  });
  return textForm(model, {
    verb: "embed",
    title: "Sentences",
    hint: "Send some sentences: their similarity appears here.",
    button: "Embed",
    controls: field("Sentences", text, "One per line."),
    document: () => ({ texts: lines(text) }),
    shown: 'for vector in found["embeddings"]:\n    print(len(vector), vector[:4])',
    draw({ embeddings: vectors }) {
      return [
        vectors.length > 1 && [
          h("h3", {}, "Similarity"),
          h("p", { class: "hint" }, "Cosine similarity of each pair; 1 means equal."),
          table(
            vectors.flatMap((one) => vectors.map((other) => cosine(one, other))),
            [vectors.length, vectors.length],
          ),
        ],
        h("h3", {}, "Embeddings ", h("small", {}, `${vectors.length} × ${vectors[0].length}`)),
        heatMap(vectors.flat(), [vectors.length, vectors[0].length], "the embeddings"),
      ];
    },
  });
}

function predictForm(model) {
  const text = h("textarea", { rows: 4, value: "What a fine day to be a fish." });
  return textForm(model, {
    verb: "predict",
    title: "Texts",
    hint: "Send some texts: their labels appear here.",
    button: "Classify",
    controls: field("Texts", text, "One per line."),
    document: () => ({ texts: lines(text) }),
    shown: 'for text in found["texts"]:\n    print(text["labels"][0])',
    draw: (found, asked) =>
      found.texts.map(({ labels }, at) => bars(labels, found.texts.length > 1 ? asked.texts[at] : "")),
  });
}

function tagForm(model) {
  const text = h("textarea", { rows: 4, value: "Ada Lovelace met Charles Babbage in London." });
  return textForm(model, {
    verb: "tag",
    title: "A text",
    hint: "Send a text: its names and places appear here.",
    button: "Mark",
    controls: field("Text", text),
    document: () => ({ text: text.value }),
    shown: 'for entity in found["texts"][0]["entities"]:\n    print(entity["label"], entity["text"])',
    draw({ texts: [{ entities }] }) {
      if (!entities.length) return h("p", {}, "Nothing was marked in this text.");
      return bars(entities.map(({ label, text, score }) => ({ label: `${text}: ${label}`, score })));
    },
  });
}

function rerankForm(model) {
  const query = h("input", { type: "text", value: "How do fish find food?", autocomplete: "off" });
  const text = h("textarea", {
    rows: 5,
    value: "A shoal finds food sooner.\nThe train leaves at noon.\nHerring eat plankton.",
  });
  return textForm(model, {
    verb: "rerank",
    title: "A query and documents",
    hint: "Send a query: the documents appear here, the best first.",
    button: "Rank",
    controls: [field("Query", query), field("Documents", text, "One per line.")],
    document: () => ({ query: query.value, documents: lines(text) }),
    shown: 'for result in found["results"]:\n    print(result["relevance_score"], result["index"])',
    draw: (found, asked) =>
      bars(
        found.results.map(({ index, relevance_score: score }) => ({
          label: asked.documents[index],
          score,
        })),
        "",
      ),
  });
}

/** The cosine of the angle between two vectors. */
export function cosine(one, other) {
  const dot = (a, b) => a.reduce((sum, value, at) => sum + value * b[at], 0);
  return dot(one, other) / (Math.sqrt(dot(one, one) * dot(other, other)) || 1);
}

// ---- others

function jsonForm(model) {
  const verb = h("input", { type: "text", value: taskOf(model.config), spellcheck: "false" });
  const body = h("textarea", {
    rows: 6,
    value: '{"text": "a shoal of fish"}',
    spellcheck: "false",
  });
  const form = h(
    "form",
    { class: "try-form" },
    field("Operation", verb, "The last part of the path."),
    field("JSON", body),
    h("div", { class: "actions" }, h("button", { class: "primary" }, "Send")),
  );
  const operation = () => encodeURIComponent(verb.value.trim());
  const parsed = () => {
    try {
      return JSON.parse(body.value);
    } catch {
      return {};
    }
  };
  const bench = workbench(model, {
    title: `The task ${taskOf(model.config)}`,
    hint: "The console has no form for this task: send JSON, the response appears here.",
    controls: form,
    lines: (shared) => ({
      curl: curlJson({ ...shared, verb: operation(), document: parsed() }),
      python: pythonTask({
        ...shared,
        verb: operation(),
        source: pythonJson(parsed()),
        shown: "print(found)",
      }),
    }),
  });
  form.addEventListener("input", () => bench.refresh());
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    bench.run(async (path, signal) => {
      JSON.parse(body.value);
      const found = await askJson(`${path}/${operation()}`, {
        method: "POST",
        body: body.value,
        headers: { "Content-Type": "application/json" },
        signal,
      });
      return h("pre", { class: "text code", tabindex: "0" }, JSON.stringify(found, null, 2));
    });
  });
  return bench.element;
}
