// The page of routes: the OpenAPI document as a list, in which each route can be tried.

import { ask, Refused, useKey } from "./api.js";
import { h, fill } from "./dom.js";
import { bodyFields, fieldOf, requestOf } from "./docsforms.js";
import { showReply } from "./docsreply.js";

const OWN_TAG = "functions";
const METHODS = ["get", "post", "put", "patch", "delete"];
const state = document.getElementById("state");
const groups = document.getElementById("groups");

document.getElementById("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = document.getElementById("key").value;
  try {
    if (key) useKey(key);
    load();
  } catch {
    state.textContent = "That is not a key: it has characters that a header cannot have.";
  }
});
load();

async function load() {
  state.textContent = "Loading …";
  try {
    const answer = await ask("openapi.json");
    show(await answer.json());
  } catch (error) {
    fill(groups);
    state.textContent =
      error instanceof Refused && error.needsKey
        ? "This server needs a key: enter yours at the top."
        : error.message;
  }
}

function show(api) {
  const byTag = new Map(api.tags.map((tag) => [tag.name, []]));
  for (const [path, methods] of Object.entries(api.paths))
    for (const method of METHODS)
      if (methods[method]) {
        const tag = methods[method].tags?.[0] ?? "server";
        if (!byTag.has(tag)) byTag.set(tag, []);
        byTag.get(tag).push({ path, method, about: methods[method] });
      }
  state.textContent = `${api.info.title} ${api.info.version}. Open a route to try it.`;
  fill(
    groups,
    [...byTag].filter(([, all]) => all.length).map(([tag, all]) => group(api, tag, all)),
  );
}

function group(api, tag, operations) {
  const own = tag === OWN_TAG;
  return h(
    "details",
    { class: "group", open: own, id: `tag-${tag}` },
    h("summary", {}, own ? "Functions" : tag, " ", h("small", {}, operations.length)),
    operations.map((each) => operation(api, each, own && operations.length === 1)),
  );
}

function operation(api, { path, method, about }, open) {
  const box = h(
    "details",
    { class: "operation", open },
    h(
      "summary",
      {},
      h("b", { class: `verb ${method}` }, method.toUpperCase()),
      h("code", {}, path),
      h("span", {}, about.summary === about.operationId ? "" : about.summary),
    ),
  );
  let made = false;
  const make = () => {
    if (made || !box.open) return;
    made = true;
    box.append(form(api, path, method, about));
  };
  box.addEventListener("toggle", make);
  make();
  return box;
}

/** What is below the line of a route: its fields, and the reply to the last request. */
function form(api, path, method, about) {
  const parameters = (about.parameters ?? []).map((each) => ({
    ...fieldOf(api, each.name, each.schema, each.required, each.description),
    place: each.in,
  }));
  const body = about.requestBody ? bodyFields(api, about.requestBody) : { fields: [], whole: null };
  const reply = h("div", { class: "reply", "aria-live": "polite" });
  const command = h("pre", { class: "snippet" });
  const send = h("button", { type: "submit", class: "primary" }, "Send");
  const collect = () => requestOf(path, method, parameters, body);
  const update = () => {
    try {
      command.textContent = collect().command;
    } catch (error) {
      command.textContent = error.message;
    }
  };
  const element = h(
    "form",
    {
      class: "operation-body",
      oninput: update,
      onsubmit: async (event) => {
        event.preventDefault();
        let request;
        try {
          request = collect();
        } catch (error) {
          fill(reply, h("p", { class: "notice bad" }, error.message));
          return;
        }
        send.disabled = true;
        await showReply(reply, request);
        send.disabled = false;
      },
    },
    about.description ? h("p", {}, about.description) : null,
    [...parameters, ...body.fields].map((each) => each.element),
    h("div", { class: "actions" }, send),
    command,
    reply,
  );
  update();
  return element;
}
