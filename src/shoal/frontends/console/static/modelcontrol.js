// Loads and unloads a model: buttons, a confirmation, and the result.

import { ask } from "./api.js";
import { announce, fill, h, setShown } from "./dom.js";
import { problem } from "./parts.js";

/** Load and unload, with the result. Empty in modes where the server loads models itself. */
export function modelControl(store, name) {
  const message = h("div", { class: "control-message", role: "status" });
  const load = h(
    "button",
    { type: "button", class: "quiet" },
    "Load",
    h("span", { class: "visually-hidden" }, ` ${name}`),
  );
  const unload = h(
    "button",
    { type: "button", class: "quiet" },
    "Unload",
    h("span", { class: "visually-hidden" }, ` ${name}`),
  );
  const yes = h(
    "button",
    { type: "button", class: "danger" },
    "Unload",
    h("span", { class: "visually-hidden" }, ` ${name}`),
  );
  const no = h("button", { type: "button", class: "quiet" }, "Cancel");
  const sure = h("span", { class: "sure", hidden: true }, h("span", {}, "Unload?"), yes, no);
  const element = h("span", { class: "control" }, load, unload, sure);
  let model = null;
  let busy = "";

  function arrange(newer = model) {
    model = newer;
    const mode = store.state?.server.model_control_mode ?? "";
    const may = mode !== "none" && mode !== "poll";
    const serves = model?.versions.some((each) => each.state === "READY") ?? false;
    setShown(element, may);
    setShown(load, !busy || busy === "load");
    setShown(unload, serves && sure.hidden && busy !== "load");
    load.firstChild.textContent = busy === "load" ? "Loading …" : serves ? "Reload" : "Load";
    unload.firstChild.textContent = busy === "unload" ? "Unloading …" : "Unload";
    for (const button of [load, unload, yes]) button.disabled = Boolean(busy);
  }

  async function act(verb) {
    busy = verb;
    setShown(sure, false);
    fill(message);
    arrange();
    try {
      await ask(`v2/repository/models/${encodeURIComponent(name)}/${verb}`, { method: "POST" });
      announce(`${name} is ${verb}ed`);
      fill(message);
    } catch (error) {
      fill(message, problem(error, error.needsKey || error.status === 403 ? () => act(verb) : null));
      announce(`Could not ${verb} ${name}: ${error.message}`);
    }
    busy = "";
    arrange();
    store.hurry();
  }

  load.addEventListener("click", () => act("load"));
  unload.addEventListener("click", () => {
    setShown(sure, true);
    arrange();
    no.focus();
  });
  no.addEventListener("click", () => {
    setShown(sure, false);
    arrange();
    unload.focus();
  });
  yes.addEventListener("click", () => act("unload"));
  return { element, message, arrange };
}
