// Components that several pages use: notices, copyable text, pills.

import { hasHeaders, Refused, unlock, useKey } from "./api.js";
import { announce, append, fill, freshId, h } from "./dom.js";

const STATES = {
  READY: ["good", "Ready"],
  LOADING: ["busy", "Loading"],
  UNLOADING: ["busy", "Unloading"],
  UNAVAILABLE: ["bad", "Unavailable"],
  "": ["quiet", "Not loaded"],
};
const ON_PURPOSE = /^unloaded$|not loaded/i;

/** A model's state as a word with a colour. */
export function statePill(state, reason = "") {
  const [kind, word] = STATES[state] ?? ["quiet", state];
  const off = state === "UNAVAILABLE" && ON_PURPOSE.test(reason.trim());
  return h("span", { class: `pill ${off ? "quiet" : kind}` }, off ? "Not loaded" : word);
}

/**
 * Whether the server can answer questions about a model: it is ready, or a request loads it, or the
 * page may not know.
 */
export function isAvailable(store, model, version = "") {
  if (!store.index && !store.state) return true;
  if (store.state?.server.model_control_mode === "lazy") return true;
  return (model?.versions ?? []).some(
    (each) => each.state === "READY" && (!version || each.version === version),
  );
}

/** Whether a model has a version that failed to load. */
export function hasFailed(model) {
  return model.versions.some(
    ({ state, reason }) => state === "UNAVAILABLE" && !ON_PURPOSE.test(reason.trim()),
  );
}

/** An error of the server; where a key or a header is required, with a field for it. */
export function problem(error, retry = null) {
  if (error instanceof Refused && (error.needsKey || error.status === 403)) {
    return lockNotice(error, retry);
  }
  const status = error instanceof Refused ? h("b", {}, `${error.status} `) : null;
  return h(
    "div",
    { class: "notice bad" },
    h("p", {}, status, error.message),
    retry && h("button", { type: "button", class: "quiet", onclick: retry }, "Try again"),
  );
}

/** 401 and 403: an explanation, and a form for the key or the required header. */
export function lockNotice(error, retry) {
  const { needsKey, header, status } = error;
  const id = freshId("key");
  const input = h("input", { id, type: "password", autocomplete: "off", required: true });
  const complaint = h("p", { class: "complaint", role: "alert" });
  const form = h(
    "form",
    { class: "inline-form" },
    needsKey
      ? h("label", { for: id }, status === 401 ? "Key" : "Another key")
      : h("label", { for: id }, "Value of ", h("code", {}, header)),
    input,
    h("button", {}, "Apply"),
    complaint,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    try {
      if (needsKey) useKey(input.value);
      else unlock(header, input.value);
    } catch {
      fill(complaint, "The value contains characters that are not allowed in a header.");
      return;
    }
    announce("Retrying with that value");
    retry?.();
  });
  return h(
    "div",
    { class: "notice lock" },
    h(
      "p",
      {},
      h("b", {}, needsKey && status === 401 ? "A key is required. " : "Restricted. "),
      lockWords(error),
    ),
    (needsKey || header) && retry
      ? [
          form,
          h(
            "p",
            { class: "hint" },
            `The ${needsKey ? "key" : "value"} stays in this page's memory and is sent only to this server.`,
          ),
        ]
      : null,
  );
}

function lockWords({ header, message, status }) {
  if (header) return `This server requires a header for this API: ${message}`;
  if (status === 401 && !hasHeaders()) return "Enter one that you have from the server's operator.";
  return message.replace(/^./, (first) => first.toUpperCase());
}

/** A text with a button to copy it. */
export function copyable(title, language, level = "h3") {
  const code = h("code", {});
  const button = h("button", { type: "button", class: "quiet copy" }, "Copy");
  button.addEventListener("click", async () => {
    const copied = await copy(code.textContent);
    button.textContent = copied ? "Copied" : "Press Ctrl+C";
    announce(copied ? `${title} copied` : "The text is selected: press Ctrl+C to copy it");
    if (!copied) getSelection().selectAllChildren(code);
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  const box = h(
    "pre",
    {
      class: "snippet",
      tabindex: "0",
      role: "group",
      "aria-label": title,
      "data-language": language,
    },
    code,
  );
  const element = h(
    "section",
    { class: "snippet-box" },
    h("div", { class: "snippet-head" }, h(level, {}, title), button),
    box,
  );
  return {
    element,
    set(text) {
      if (code.textContent !== text) code.textContent = text;
    },
  };
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // allowed only on localhost or over HTTPS
  }
}

/** A label and its control, in that order. */
export function field(label, control, hint = "") {
  const id = control.id || freshId("field");
  control.id = id;
  const hintId = `${id}-hint`;
  if (hint) control.setAttribute("aria-describedby", hintId);
  return append(h("div", { class: "field" }), [
    h("label", { for: id }, label),
    control,
    hint && h("p", { class: "hint", id: hintId }, hint),
  ]);
}

/** A placeholder with advice. */
export function emptyState(title, ...words) {
  return h(
    "div",
    { class: "empty" },
    h("p", { class: "empty-title" }, title),
    h("p", {}, ...words),
  );
}
