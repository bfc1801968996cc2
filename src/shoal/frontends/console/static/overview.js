// The first page: the server's figures, its models, recent errors.

import { shareBar, sparkline } from "./charts.js";
import { fill, h, setText } from "./dom.js";
import { errorList, errorMark } from "./errorpage.js";
import { count, duration } from "./format.js";
import { machineChart, meters, processTable } from "./machine.js";
import { modelList } from "./modellist.js";
import { timeParts, trafficCharts } from "./traffic.js";

const SHOWN_ERRORS = 4;
const SHOWN_PROBLEMS = 3;
const CHARTS_FIRST_FROM = 24; // models: a longer list would hide the charts

export function overview(store) {
  const tiles = {
    rate: tile("Requests per second"),
    latency: tile("Latency, median"),
    slow: tile("Latency, p99"),
    queue: tile("Waiting in queues"),
    batch: tile("Rows per execution"),
  };
  const charts = [...trafficCharts(), machineChart(), meters(), timePanel(), processTable()];
  const models = modelList(store);
  const errors = h("div", {});
  const plots = h(
    "section",
    { "aria-label": "Over time" },
    h(
      "div",
      { class: "plots" },
      charts.map((chart) => chart.element),
    ),
  );
  const problems = h("div", { role: "status", "aria-label": "Problems" });
  const element = h(
    "div",
    { class: "page" },
    h("h1", { class: "visually-hidden" }, "Overview"),
    problems,
    h(
      "section",
      { class: "tiles", "aria-label": "The last ten seconds" },
      Object.values(tiles).map((each) => each.element),
    ),
    models.element,
    plots,
    h(
      "section",
      { class: "errors-lately" },
      h(
        "div",
        { class: "section-head" },
        h("h2", {}, "Recent errors"),
        h("a", { href: "#/errors" }, "Show all"),
      ),
      errors,
    ),
  );

  let errorsSeen = "";
  let problemsSeen = "[]";
  return {
    element,
    title: "Overview",
    update() {
      const { all, state } = store;
      if (!state) return;
      const now = state.time_ms;
      const recent = all.recent;
      const mark = JSON.stringify(state.server.problems);
      if (mark !== problemsSeen) {
        problemsSeen = mark;
        fill(problems, problemNotices(state.server.problems));
      }
      tiles.rate.update(count(recent?.rate ?? null), all.points, now, (point) => point.rate);
      tiles.latency.update(duration(recent?.p50 ?? null), all.points, now, (point) => point.p50);
      tiles.slow.update(duration(recent?.p99 ?? null), all.points, now, (point) => point.p99);
      tiles.queue.update(
        count(all.totals?.pending ?? null),
        all.points,
        now,
        (point) => point.pending,
      );
      tiles.batch.update(count(recent?.rows ?? null), all.points, now, (point) => point.rows);
      charts[0].update(all.points, now);
      charts[1].update(all.points, now);
      charts[2].update(all.points, now);
      charts[3].update(store.machine, now);
      charts[4].update(store);
      charts[5].update(store);
      charts[6].update(store);
      const many = store.models().length > CHARTS_FIRST_FROM;
      if (many && plots.previousElementSibling === models.element) plots.after(models.element);
      models.update();
      const found = errorMark(store);
      if (found !== errorsSeen) {
        errorsSeen = found;
        fill(errors, errorList(store, now, SHOWN_ERRORS));
      }
    },
    close() {
      charts.forEach((chart) => chart.close?.());
    },
  };
}

/** The first problems; the others on demand, so that the page still begins with its figures. */
function problemNotices(found) {
  const notices = found.map(problemNotice);
  if (notices.length <= SHOWN_PROBLEMS + 1) return notices;
  const rest = notices.slice(SHOWN_PROBLEMS);
  return [
    ...notices.slice(0, SHOWN_PROBLEMS),
    h("details", { class: "more-problems" }, h("summary", {}, `${rest.length} more problems`), rest),
  ];
}

/** Why the server is not ready, or what is wrong although it is. */
function problemNotice({ text, blocks }) {
  return h(
    "div",
    { class: `notice ${blocks ? "bad" : "warn"}` },
    h("p", {}, h("b", {}, blocks ? "Not ready: " : "Warning: "), text),
  );
}

/** A figure with a sparkline. */
function tile(label) {
  const value = h("b", { class: "tile-value" }, "–");
  const spark = sparkline(28);
  return {
    element: h(
      "div",
      { class: "card tile" },
      h("span", { class: "tile-label" }, label),
      value,
      spark.element,
    ),
    update(text, points, now, pick) {
      setText(value, text);
      spark.update(points, now, pick);
    },
  };
}

/** The time of all requests by phase. */
function timePanel() {
  const bar = shareBar("Time of a request by phase, in the last ten seconds", duration);
  return {
    element: h(
      "section",
      { class: "card plot" },
      h("h3", { class: "plot-title" }, "Time by phase ", h("small", {}, "the last ten seconds")),
      bar.element,
      h("p", { class: "hint" }, "Mean of all requests. Each model's page shows its own."),
    ),
    update: (store) => bar.update(timeParts(store.all.recent)),
  };
}
