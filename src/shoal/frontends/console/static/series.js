// Computes chart points from the counters of two polls.
//
//     snapshot, snapshot --> between() --> { rate, p50, p99, rows, … }   one point of every chart
//
// The server's histograms are cumulative; the difference of two is the histogram of the time between,
// from which percentiles are estimated. Pure functions, tested in the browser.

const NS_PER_MS = 1e6;

/** The count of each bucket between two cumulative readings; the whole count after a reload. */
export function difference(after, before) {
  const reset = !before || before.some((count, index) => count > after[index]);
  const grown = reset ? after : after.map((count, index) => count - before[index]);
  return grown.map((count, index) => count - (index ? grown[index - 1] : 0));
}

/** Values are assumed to be distributed evenly within a bucket, on a logarithmic scale like the
 *  buckets. The last bucket has no end: its start is the result. */
export function percentile(edges, counts, share) {
  const total = counts.reduce((sum, each) => sum + each, 0);
  if (!total) return null;
  const wanted = share * total;
  let seen = 0;
  for (let bucket = 0; bucket < counts.length; bucket += 1) {
    const inside = counts[bucket];
    if (inside && seen + inside >= wanted) {
      if (bucket >= edges.length) return edges[edges.length - 1];
      const part = Math.max(0, wanted - seen) / inside;
      if (bucket === 0) return edges[0] * part;
      const low = edges[bucket - 1];
      return low * (edges[bucket] / low) ** part;
    }
    seen += inside;
  }
  return edges[edges.length - 1];
}

/** The sum of the counters of several models. */
export function total(models) {
  const sum = {
    pending: 0,
    success: 0,
    success_ns: 0,
    failed: 0,
    rows: 0,
    executions: 0,
    queue_ns: 0,
    input_ns: 0,
    infer_ns: 0,
    output_ns: 0,
    cache_hits: 0,
    request: null,
    batch: null,
  };
  for (const model of models) {
    for (const name of Object.keys(sum)) {
      if (typeof sum[name] === "number" && name !== "failed") sum[name] += model[name] ?? 0;
    }
    sum.failed += failures(model);
    if (model.histograms) {
      sum.request = added(sum.request, model.histograms.request);
      sum.batch = added(sum.batch, model.histograms.batch);
    }
  }
  return sum;
}

function failures(model) {
  return Object.values(model.failures ?? {}).reduce((sum, count) => sum + count, 0);
}

function added(one, other) {
  return one ? one.map((count, index) => count + other[index]) : [...other];
}

/** The difference of two totals that are `seconds` apart. */
export function between(before, after, seconds, edges) {
  const reset = !before || after.success < before.success || after.executions < before.executions;
  const since = (name) => after[name] - (reset ? 0 : before[name]);
  const done = since("success");
  const computed = done - since("cache_hits");
  const point = {
    rate: done / seconds,
    failRate: Math.max(0, after.failed - (reset ? 0 : before.failed)) / seconds,
    pending: after.pending,
    rows: since("executions") > 0 ? since("rows") / since("executions") : null,
    mean: done > 0 ? since("success_ns") / done / NS_PER_MS : null,
    p50: null,
    p90: null,
    p99: null,
    done,
    queue: done > 0 ? since("queue_ns") / done / NS_PER_MS : null,
    input: computed > 0 ? since("input_ns") / computed / NS_PER_MS : null,
    infer: computed > 0 ? since("infer_ns") / computed / NS_PER_MS : null,
    output: computed > 0 ? since("output_ns") / computed / NS_PER_MS : null,
  };
  if (after.request && done > 0) {
    const counts = difference(after.request, reset ? null : before.request);
    for (const [name, share] of [
      ["p50", 0.5],
      ["p90", 0.9],
      ["p99", 0.99],
    ]) {
      const found = percentile(edges, counts, share);
      point[name] = found === null ? null : found / NS_PER_MS;
    }
  }
  return point;
}

/** The newest points of one model, or of all, and the data for the next. */
export class History {
  constructor(limit = 600, recentSeconds = 10) {
    this.points = [];
    this.recent = null; // over the last seconds, for steady figures
    this.totals = null; // current
    this._limit = limit;
    this._recentSeconds = recentSeconds;
    this._looks = []; // { ns, totals } of the last seconds
  }

  /** Add a poll at `ns` (the server's clock) and `ms` (wall clock). */
  add(totals, ns, ms, edges) {
    const looks = this._looks;
    const last = looks[looks.length - 1];
    if (last && ns <= last.ns) return;
    if (last && totals.success < last.totals.success) looks.length = 0; // reloaded
    if (last) {
      const seconds = (ns - last.ns) / 1e9;
      this.points.push({ ms, ...between(last.totals, totals, seconds, edges) });
      if (this.points.length > this._limit) this.points.shift();
    }
    looks.push({ ns, totals });
    while (looks.length > 2 && (ns - looks[1].ns) / 1e9 >= this._recentSeconds) looks.shift();
    const first = looks[0];
    const seconds = (ns - first.ns) / 1e9;
    this.recent = seconds > 0 ? between(first.totals, totals, seconds, edges) : null;
    this.totals = totals;
  }

  /** Since the model was loaded: the means, percentiles and shares of all its requests. */
  sinceLoad(edges) {
    return this.totals ? between(null, this.totals, 1, edges) : null;
  }

  /** Reset: there was a time without polls, which must not show as a time without traffic. */
  gap(ms) {
    if (this.points.length) this.points.push({ ms });
    this._looks.length = 0;
  }
}
