// The list of models, with their states and figures.
//
// Rows are reused. In a long list, those far outside of the window are only names: drawing hundreds of
// rows every second would take longer than a second.

import { Refused } from "./api.js";
import { sparkline } from "./charts.js";
import { fill, h, setShown, setText } from "./dom.js";
import { count, duration } from "./format.js";
import { modelControl } from "./modelcontrol.js";
import { emptyState, problem, statePill } from "./parts.js";

const FILTER_FROM = 8; // models
const VIRTUAL_FROM = 60;
const NEAR = "600px"; // rows this close to the window are complete

export function modelList(store) {
  const search = h("input", {
    type: "search",
    placeholder: "Find a model",
    "aria-label": "Find a model",
  });
  const notice = h("div", {});
  const list = h("ul", { class: "models" }, columnHeads());
  const rows = new Map(); // name -> row
  const watcher = new IntersectionObserver(
    (changes) => {
      for (const { target, isIntersecting } of changes) {
        const row = rows.get(target.dataset.name);
        if (row?.element === target) row.show(isIntersecting || rows.size < VIRTUAL_FROM);
      }
    },
    { rootMargin: NEAR },
  );
  const heading = h("h2", {}, "Models");
  const element = h(
    "section",
    { class: "model-section" },
    h("div", { class: "section-head" }, heading, search),
    notice,
    list,
  );
  let seen = "";
  let filter = "";
  search.addEventListener("input", () => {
    filter = search.value.trim().toLowerCase();
    seen = "";
    refresh();
  });

  function refresh() {
    const models = store.models();
    const mark = `${store.changes} ${filter} ${store.link} ${store.indexProblem?.message} ${store.index === null && models.length}`;
    if (mark !== seen) {
      seen = mark;
      arrange(models);
    }
    const now = store.state?.time_ms ?? Date.now();
    for (const row of rows.values()) row.update(now);
  }

  function arrange(models) {
    setShown(search, models.length > FILTER_FROM);
    setShown(list, models.length > 0);
    fill(notice, notes(store));
    const shown = models.filter((model) => model.name.toLowerCase().includes(filter));
    const counted = filter ? `${shown.length} of ${models.length}` : models.length;
    setText(heading, models.length ? `Models (${counted})` : "Models");
    const names = new Set(shown.map((model) => model.name));
    for (const [name, row] of rows) {
      if (!names.has(name)) {
        watcher.unobserve(row.element);
        row.element.remove();
        rows.delete(name);
      }
    }
    for (const model of shown) {
      let row = rows.get(model.name);
      if (!row) {
        rows.set(model.name, (row = modelRow(store, model.name)));
        if (shown.length < VIRTUAL_FROM) row.show(true);
        watcher.observe(row.element);
      }
      row.arrange(model);
      list.append(row.element);
    }
    if (!models.length && store.index) {
      notice.append(
        emptyState(
          "There are no models yet.",
          "Put a folder for each model into the repository, or try: ",
          h("code", {}, "shoal serve resnet50.onnx"),
          " or ",
          h("code", {}, "shoal serve --demo"),
          ".",
        ),
      );
    } else if (models.length && !shown.length) {
      notice.append(
        emptyState("No model matches.", "Clear the search to see all models."),
      );
    }
  }

  return { element, update: refresh };
}

function columnHeads() {
  const heads = [
    "Model",
    "State",
    "Requests/s",
    "p50",
    "p99",
    "Waiting",
    "Rows",
    "Last minute",
    "",
  ];
  return h(
    "li",
    { class: "model-heads", "aria-hidden": "true" },
    heads.map((head) => h("span", {}, head)),
  );
}

function notes(store) {
  const found = [];
  if (store.indexProblem instanceof Refused) {
    found.push(problem(store.indexProblem, () => store.hurry()));
    found.push(h("p", { class: "hint" }, "Without the index, only loaded models are listed."));
  }
  const addresses = store.state?.server.addresses ?? [];
  if (addresses.length) {
    found.push(
      h(
        "p",
        { class: "hint" },
        "Models come from ",
        addresses.map((each, index) => [index ? ", " : "", h("code", {}, each)]),
        ".",
      ),
    );
  }
  const mode = store.state?.server.model_control_mode;
  if (mode === "none") {
    found.push(
      h(
        "p",
        { class: "hint" },
        "This server loads all models at start. With ",
        h("code", {}, "--model-control-mode=explicit"),
        ", models can be loaded and unloaded here.",
      ),
    );
  } else if (mode === "poll") {
    found.push(
      h(
        "p",
        { class: "hint" },
        "This server polls its repository (mode poll): change a model's folder to load or unload it. With ",
        h("code", {}, "--model-control-mode=explicit"),
        ", models can be loaded and unloaded here.",
      ),
    );
  }
  return found;
}

/** A model's row: its name, and while it is `show`n everything else. */
function modelRow(store, name) {
  const link = h("a", { href: `#/models/${encodeURIComponent(name)}` }, name);
  const element = h(
    "li",
    { class: "model-row", "data-name": name },
    h("div", { class: "model-name" }, link),
  );
  let rest = null;
  let model = null;
  return {
    element,
    show(near) {
      if (near && !rest) {
        rest = rowDetails(store, name);
        element.querySelector(".model-name").append(rest.versions);
        element.append(...rest.elements);
        element.style.minHeight = "";
        if (model) rest.arrange(model);
      } else if (!near && rest && !element.contains(document.activeElement) && !rest.isBusy()) {
        element.style.minHeight = `${element.offsetHeight}px`; // so that nothing moves
        element.replaceChildren(h("div", { class: "model-name" }, link));
        rest = null;
      }
    },
    arrange(newer) {
      model = newer;
      rest?.arrange(model);
    },
    update(now) {
      rest?.update(now);
    },
  };
}

function rowDetails(store, name) {
  const versions = h("span", { class: "versions" });
  const state = h("span", {});
  const unhealthy = h("span", { class: "pill bad", hidden: true }, "Unhealthy");
  const reason = h("p", { class: "reason" });
  const download = h("progress", { class: "download", max: 100, "aria-label": `${name}: download` });
  const figures = ["Requests/s", "p50", "p99", "Waiting", "Rows"].map((label) => {
    const value = h("span", { class: "figure-value" }, "–");
    return {
      value,
      element: h(
        "span",
        { class: "figure" },
        h("span", { class: "figure-label" }, `${label} `),
        value,
      ),
    };
  });
  const spark = sparkline(26);
  const control = modelControl(store, name);
  const tryIt = h(
    "a",
    { class: "button-like quiet", href: `#/models/${encodeURIComponent(name)}/try` },
    "Try it",
    h("span", { class: "visually-hidden" }, ` ${name}`),
  );
  return {
    versions,
    elements: [
      h("span", { class: "model-state" }, state, unhealthy),
      ...figures.map((figure) => figure.element),
      h("span", { class: "figure spark-cell" }, spark.element),
      h("div", { class: "row-actions" }, tryIt, control.element),
      reason,
      download,
      control.message,
    ],
    isBusy: () => control.message.childElementCount > 0,
    arrange(model) {
      const ready = model.versions.filter((each) => each.state === "READY");
      const numbered = model.versions.filter((each) => each.version).map((each) => each.version);
      setText(versions, numbered.length ? `version ${numbered.join(", ")}` : "");
      const states = new Map(
        model.versions.map((each) => [statePill(each.state, each.reason).textContent, each]),
      );
      fill(
        state,
        [...states.values()].map((each) => [statePill(each.state, each.reason), " "]),
      );
      const reasons = [
        ...new Set(
          model.versions
            .filter((each) => each.reason && each.state !== "READY")
            .map((each) => each.reason),
        ),
      ];
      setText(reason, reasons.join(" · "));
      setShown(reason, reasons.length > 0);
      const percent = /^downloading: (\d+) %/.exec(reasons[0] ?? "");
      download.value = Number(percent?.[1] ?? 0);
      setShown(download, percent !== null);
      const lazy = store.state?.server.model_control_mode === "lazy"; // a request loads it
      setShown(tryIt, ready.length > 0 || lazy);
      control.arrange(model);
    },
    update(now) {
      const history = store.history(name);
      const recent = history?.recent;
      const counters = store.counters(name);
      setShown(
        unhealthy,
        counters.some((each) => each.health?.unhealthy_instances),
      );
      setText(figures[0].value, count(recent?.rate ?? null));
      setText(figures[1].value, duration(recent?.p50 ?? null));
      setText(figures[2].value, duration(recent?.p99 ?? null));
      setText(figures[3].value, count(history?.totals?.pending ?? null));
      setText(figures[4].value, count(recent?.rows ?? null));
      spark.update(history?.points ?? [], now, (point) => point.rate);
    },
  };
}
