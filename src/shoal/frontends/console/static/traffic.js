// Charts of the traffic of a server or a model, and of the time of a request by phase.

import { lineChart } from "./charts.js";
import { count, duration } from "./format.js";

/** The charts of a server or of one model. */
export function trafficCharts() {
  return [
    lineChart({
      title: "Throughput",
      note: "requests per second",
      format: count,
      series: [
        { name: "answered", kind: 1, area: true, pick: (point) => point.rate },
        { name: "failed", kind: 4, pick: (point) => point.failRate },
      ],
    }),
    lineChart({
      title: "Latency",
      note: "estimated from histograms",
      format: duration,
      ratios: true,
      series: [
        { name: "p50", kind: 1, pick: (point) => point.p50 },
        { name: "p90", kind: 2, pick: (point) => point.p90 },
        { name: "p99", kind: 3, pick: (point) => point.p99 },
      ],
    }),
    lineChart({
      title: "Queue and batches",
      note: "requests and rows",
      format: count,
      most: 1,
      series: [
        { name: "waiting", kind: 2, area: true, pick: (point) => point.pending },
        { name: "rows per execution", kind: 1, pick: (point) => point.rows },
      ],
    }),
  ];
}

/** The phases of a mean request, for a bar. */
export function timeParts(point) {
  return [
    { name: "Queue", kind: 2, value: point?.queue ?? 0 },
    { name: "Input", kind: 3, value: point?.input ?? 0 },
    { name: "Compute", kind: 1, value: point?.infer ?? 0 },
    { name: "Output", kind: 4, value: point?.output ?? 0 },
  ];
}
