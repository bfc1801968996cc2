// A conversation with a text model, over OpenAI's API: its replies appear word by word.

import { ask, events, lockedHeaders, Refused } from "./api.js";
import { announce, fill, h, setShown } from "./dom.js";
import { copyable, field, problem } from "./parts.js";
import { curlChat, pythonChat } from "./snippets.js";
import { whereabouts } from "./tryit.js";

const PROMPTS = ["text_input", "prompt"];
const MOST_TOKENS = 200;

/** Whether a model is for conversations: a text in, a text out, as OpenAI's API finds them. */
export function isChatModel({ metadata, config }) {
  const parameter = (key) => config?.parameters?.[key]?.string_value;
  const named = parameter("openai_input");
  const prompt = metadata.inputs.some(
    ({ name, datatype }) =>
      datatype === "BYTES" && (named ? name === named : PROMPTS.includes(name.toLowerCase())),
  );
  return prompt && metadata.outputs.some(({ datatype }) => datatype === "BYTES");
}

export function chatForm(model) {
  const messages = []; // { role, content }
  const log = h("ol", { class: "chat", "aria-label": "Conversation", "aria-live": "polite" });
  const hint = h("p", { class: "hint" }, "Write something: the reply appears here, word by word.");
  const text = h("textarea", { rows: 3, value: "Tell me about fish." });
  const system = h("textarea", { rows: 2, placeholder: "none" });
  const tokens = h("input", { type: "number", min: "1", max: "100000", value: String(MOST_TOKENS) });
  const temperature = h("input", { type: "number", min: "0", max: "2", step: "0.1", placeholder: "the model's" });
  const send = h("button", { class: "primary" }, "Send");
  const stop = h("button", { type: "button", class: "quiet", hidden: true }, "Stop");
  const anew = h("button", { type: "button", class: "quiet" }, "New conversation");
  const curl = copyable("curl", "sh");
  const python = copyable("Python", "python");
  let running = null;

  function body(newest) {
    const told = system.value.trim() ? [{ role: "system", content: system.value.trim() }] : [];
    const made = {
      model: model.name,
      messages: [...told, ...messages, ...(newest ? [{ role: "user", content: newest }] : [])],
      stream: true,
    };
    if (Number(tokens.value) > 0) made.max_tokens = Number(tokens.value);
    if (temperature.value !== "") made.temperature = Number(temperature.value);
    return made;
  }

  function refresh() {
    const shared = { ...whereabouts(), locked: lockedHeaders(), document: body(text.value.trim()) };
    curl.set(curlChat(shared));
    python.set(pythonChat(shared));
  }

  function bubble(role, content) {
    const words = h("p", { class: "said" }, content);
    const item = h(
      "li",
      { class: `bubble ${role}` },
      h("span", { class: "visually-hidden" }, role === "user" ? "You: " : "The model: "),
      words,
    );
    log.append(item);
    return { item, words };
  }

  async function converse(asked) {
    const request = body(asked);
    bubble("user", asked);
    const reply = bubble("assistant", "");
    const mine = (running = new AbortController());
    setShown(hint, false);
    setShown(stop, true);
    send.disabled = true;
    text.value = "";
    let said = "";
    try {
      const answer = await ask("v1/chat/completions", {
        method: "POST",
        body: JSON.stringify(request),
        headers: { "Content-Type": "application/json" },
        signal: mine.signal,
      });
      for await (const event of events(answer)) {
        if (event.error) throw new Refused(answer.status, event.error.message ?? String(event.error));
        said += event.choices?.[0]?.delta?.content ?? "";
        reply.words.textContent = said;
      }
    } catch (error) {
      if (!mine.signal.aborted) {
        reply.item.remove();
        log.append(h("li", {}, problem(error)));
        text.value = asked;
        announce(`The server returned an error: ${error.message}`);
        return;
      }
    } finally {
      running = null;
      setShown(stop, false);
      send.disabled = false;
      refresh();
    }
    messages.push({ role: "user", content: asked }, { role: "assistant", content: said });
    if (!said) fill(reply.words, h("i", {}, "The reply is empty."));
    refresh();
    text.focus({ preventScroll: true });
  }

  const form = h(
    "form",
    { class: "try-form" },
    field("Message", text),
    h(
      "details",
      {},
      h("summary", {}, "Options"),
      field("System message", system),
      field("Most tokens", tokens),
      field("Temperature", temperature),
    ),
    h("div", { class: "actions" }, send, stop, anew),
  );
  form.addEventListener("input", refresh);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const asked = text.value.trim();
    if (asked && !running) converse(asked);
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  stop.addEventListener("click", () => running?.abort());
  anew.addEventListener("click", () => {
    running?.abort();
    messages.length = 0;
    fill(log);
    setShown(hint, true);
    refresh();
  });
  refresh();
  return h(
    "div",
    { class: "try" },
    h("div", { class: "card chat-card" }, h("h2", {}, "Conversation"), hint, log, form),
    h(
      "div",
      { class: "card snippets" },
      h("h2", {}, "From a terminal"),
      h("p", { class: "hint" }, "The same request as in the form, over OpenAI's API."),
      curl.element,
      python.element,
    ),
  );
}
