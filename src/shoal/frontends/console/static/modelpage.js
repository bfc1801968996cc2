// One model: live figures, a form to try it, its batches explained, traces, its effective config.

import { Refused, askJson, modelPath } from "./api.js";
import { batchPart } from "./batches.js";
import { chatForm, isChatModel } from "./chat.js";
import { configPart } from "./config.js";
import { fill, h, setShown, setText } from "./dom.js";
import { livePart } from "./live.js";
import { modelControl } from "./modelcontrol.js";
import { emptyState, isAvailable, problem, statePill } from "./parts.js";
import { taskForm, taskOf } from "./tasks.js";
import { tracePart } from "./traces.js";
import { tensorForm } from "./tryit.js";

const TABS = [
  ["", "Live"],
  ["try", "Try it"],
  ["batches", "Batches"],
  ["traces", "Traces"],
  ["config", "Config"],
];

export function modelPage(store, { name, tab, version }) {
  const state = h("span", { class: "model-state" });
  const reason = h("p", { class: "reason" });
  const control = modelControl(store, name);
  const chooser = h("label", { class: "version-choice" }, "Version ");
  const place = (word, number = version) =>
    `#/models/${encodeURIComponent(name)}${word ? `/${word}` : ""}${number ? `?version=${number}` : ""}`;
  const tabs = h(
    "nav",
    { class: "tabs", "aria-label": `Pages of ${name}` },
    TABS.map(([word, label]) =>
      h("a", { href: place(word), "aria-current": word === tab ? "page" : null }, label),
    ),
  );
  const views = {
    "": livePart,
    try: tryPart,
    batches: batchPart,
    traces: tracePart,
    config: configPart,
  };
  const view = (views[tab] ?? livePart)(store, name, version);
  const element = h(
    "div",
    { class: "page" },
    h("p", { class: "crumb" }, h("a", { href: "#/" }, "Overview"), " / "),
    h(
      "div",
      { class: "model-head" },
      h("h1", {}, name),
      state,
      chooser,
      h("div", { class: "row-actions" }, control.element),
    ),
    reason,
    control.message,
    tabs,
    view.element,
  );
  let seen = "";
  return {
    element,
    title: name,
    update() {
      const model = store.models().find((each) => each.name === name);
      const mark = `${JSON.stringify(model ?? null)} ${store.state?.server.model_control_mode} ${store.link === "connecting"}`;
      if (mark !== seen) {
        seen = mark;
        const versions = model?.versions ?? [];
        const shown = version ? versions.filter((each) => each.version === version) : versions;
        fill(
          state,
          shown.length
            ? shown.map((each) => [statePill(each.state, each.reason), " "])
            : statePill(""),
        );
        const reasons = [
          ...new Set(
            shown
              .filter((each) => each.reason && each.state !== "READY")
              .map((each) => each.reason),
          ),
        ];
        setText(
          reason,
          model || !store.index
            ? reasons.join(" · ")
            : "The server has no model of this name.",
        );
        setShown(reason, reason.textContent !== "");
        const ready = versions.filter((each) => each.state === "READY").map((each) => each.version);
        setShown(chooser, ready.length > 1 || Boolean(version));
        const select = h(
          "select",
          { "aria-label": "Version" },
          h("option", { value: "" }, "the newest"),
          ready.map((number) => h("option", { value: number }, number)),
        );
        select.value = ready.includes(version) ? version : "";
        select.addEventListener("change", () => (location.hash = place(tab, select.value)));
        fill(chooser, "Version ", select);
        control.arrange(model);
        view.stateChanged?.(model);
      }
      view.update?.();
    },
    close() {
      view.close?.();
    },
  };
}

/** The form for what a model does; null for one that is only tensors. */
function specialForm(model) {
  if (taskOf(model.config)) return () => taskForm(model);
  return isChatModel(model) ? () => chatForm(model) : null;
}

function tryPart(store, name, version) {
  const room = h("div", {});
  let shown = ""; // the versions of the form
  let made = ""; // and its metadata
  let attempt = 0;

  async function make() {
    const mine = (attempt += 1);
    try {
      const metadata = await askJson(modelPath(name, version));
      let config = null;
      try {
        config = await askJson(`${modelPath(name, version)}/config`);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
      }
      const mark = JSON.stringify([metadata, config]);
      if (mine !== attempt || mark === made) return; // the user may be typing
      made = mark;
      const model = { name, version, metadata, config };
      const tensors = () => tensorForm(model);
      const form = specialForm(model);
      if (!form) {
        fill(room, tensors());
        return;
      }
      const pane = h("div", {}, form());
      const raw = h("button", { type: "button", class: "quiet" }, "Tensors instead");
      let plain = false;
      raw.addEventListener("click", () => {
        plain = !plain;
        setText(raw, plain ? "Form instead" : "Tensors instead");
        fill(pane, plain ? tensors() : form());
      });
      fill(
        room,
        h("p", { class: "task-line" }, h("span", {}, "Task: ", h("b", {}, taskOf(config) || "conversation")), raw),
        pane,
      );
    } catch (error) {
      if (mine !== attempt) return;
      made = "";
      fill(
        room,
        problem(error, () => make()),
      );
    }
  }

  return {
    element: room,
    stateChanged(model) {
      if (store.link === "connecting") return; // no data yet
      const versions = (model?.versions ?? []).filter(
        (each) => each.state === "READY" && (!version || each.version === version),
      );
      const mark = `ready ${versions.map((each) => each.version).join()}`;
      if (mark === shown) return;
      shown = mark;
      if (isAvailable(store, model, version)) {
        make();
        return;
      }
      attempt += 1;
      made = "";
      fill(
        room,
        emptyState("No version is ready.", "You can try the model once it is ready."),
      );
    },
  };
}
