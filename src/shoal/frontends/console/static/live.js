// A model's page "Live": charts, the time of a request by phase, and facts.

import { columns, shareBar } from "./charts.js";
import { fill, h, setShown } from "./dom.js";
import { ago, bytes, count, duration } from "./format.js";
import { emptyState } from "./parts.js";
import { difference } from "./series.js";
import { timeParts, trafficCharts } from "./traffic.js";

export function livePart(store, name, version) {
  const charts = trafficCharts();
  const lately = shareBar("Time of a request by phase, recently", duration);
  const ever = shareBar("Time of a request by phase, since the model was loaded", duration);
  const facts = h("dl", { class: "facts" });
  const spread = h("div", {});
  const nothing = emptyState(
    "No version is ready.",
    "Once the model is ready, its traffic is shown here.",
  );
  const body = h(
    "div",
    {},
    h(
      "div",
      { class: "plots" },
      charts.map((chart) => chart.element),
    ),
    h(
      "div",
      { class: "halves" },
      h(
        "section",
        { class: "card" },
        h("h2", {}, "Time by phase"),
        h("h3", {}, "The last ten seconds"),
        lately.element,
        h("h3", {}, "Since the model was loaded"),
        ever.element,
      ),
      h("section", { class: "card" }, h("h2", {}, "Facts"), facts, spread),
    ),
  );
  const element = h("div", {}, nothing, body);
  let factsSeen = "";
  return {
    element,
    update() {
      const history = store.history(name, version);
      setShown(nothing, !history);
      setShown(body, Boolean(history));
      if (!history || !store.state) return;
      const now = store.state.time_ms;
      charts.forEach((chart) => chart.update(history.points, now));
      lately.update(timeParts(history.recent));
      const edges = store.state.duration_edges_ns;
      const all = history.sinceLoad(edges);
      ever.update(timeParts(all));
      const counters = store.counters(name, version);
      const mark =
        JSON.stringify(
          counters.map((each) => [
            each.success,
            each.failures,
            each.executions,
            each.on_loop,
            each.health,
            each.memory_bytes,
          ]),
        ) + Math.floor(now / 5000);
      if (mark === factsSeen) return;
      factsSeen = mark;
      fill(facts, factRows(counters, all, now));
      fill(spread, batchColumns(store, counters));
    },
    close() {
      charts.forEach((chart) => chart.close());
    },
  };
}

function onGpus(size) {
  return size ? `, of which ${bytes(size)} on GPUs` : "";
}

function factRows(counters, all, now) {
  const sum = (pick) => counters.reduce((total, each) => total + pick(each), 0);
  const failures = {};
  for (const each of counters) {
    for (const [word, number] of Object.entries(each.failures))
      failures[word] = (failures[word] ?? 0) + number;
  }
  const failed = Object.entries(failures).filter(([, number]) => number);
  const last = Math.max(...counters.map((each) => each.last_inference_ms));
  const rows = [
    ["Succeeded", count(sum((each) => each.success))],
    [
      "Failed",
      failed.length
        ? failed.map(([word, number]) => `${count(number)} ${word.toLowerCase()}`).join(", ")
        : "none",
    ],
    [
      "Executions",
      `${count(sum((each) => each.executions))} with ${count(all?.rows ?? null)} rows on average`,
    ],
    [
      "Latency since loaded",
      all?.p50 === null || !all
        ? "–"
        : `p50 ${duration(all.p50)}, p99 ${duration(all.p99)}, mean ${duration(all.mean)}`,
    ],
    ["Runs on", counters.every((each) => each.on_loop) ? "the event loop" : "threads"],
    [
      "Memory",
      sum((each) => each.memory_bytes)
        ? `about ${bytes(sum((each) => each.memory_bytes))}${onGpus(sum((each) => each.gpu_memory_bytes))}`
        : "–",
    ],
    [
      "Loaded",
      counters
        .map((each) => `${ago(each.loaded_ms, now)}, in ${duration(each.load_secs * 1000)}`)
        .join("; "),
    ],
    ["Last request", last ? ago(last, now) : "never"],
  ];
  const timeouts = sum((each) => each.health?.timeouts ?? 0);
  if (timeouts) {
    const hanging = sum((each) => each.health?.abandoned_threads ?? 0);
    const unhealthy = sum((each) => each.health?.unhealthy_instances ?? 0);
    rows.splice(2, 0, [
      "Executions too long",
      `${count(timeouts)}; threads that hang: ${count(hanging)}; unhealthy instances: ${count(unhealthy)}`,
    ]);
  }
  const hits = sum((each) => each.cache_hits);
  if (hits) rows.splice(2, 0, ["From the cache", count(hits)]);
  return rows.map(([term, words]) => h("div", {}, h("dt", {}, term), h("dd", {}, words)));
}

function batchColumns(store, counters) {
  const drawn = counters.map((each) => each.histograms?.batch).filter(Boolean);
  if (!drawn.length) return null;
  const cumulative = drawn.reduce((sum, each) => sum.map((value, index) => value + each[index]));
  const counts = difference(cumulative, null);
  const edges = store.state.batch_size_edges;
  let last = counts.length - 1;
  while (last > 0 && !counts[last]) last -= 1;
  if (!counts[last]) return null;
  const label = (index) => {
    if (index >= edges.length) return `>${edges[edges.length - 1]}`;
    const low = index ? edges[index - 1] + 1 : 1;
    return low === edges[index] ? String(low) : `≤${edges[index]}`;
  };
  return columns(
    "Executions by rows",
    counts.slice(0, last + 1).map((value, index) => ({ label: label(index), value })),
    count,
  );
}
