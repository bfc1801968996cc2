// The data of the page: polls the server every second while the page is visible.
//
//     GET v2/console --> histories, machine, errors --> "look" --> the view on screen
//     POST v2/repository/index --> models and their states
//
// A page in the background does not poll. If the server does not respond, the page shows that, retries
// every few seconds, and continues.

import { Refused, ask, askJson } from "./api.js";
import { History, total } from "./series.js";

const LOOK_MS = 1000;
const INDEX_MS = 3000;
const SLOWEST_RETRY_MS = 5000;
const TIMEOUT_SECONDS = 8;
const MOST_POINTS = 600;
const MOST_ERRORS = 200;

export class Store extends EventTarget {
  constructor() {
    super();
    this.link = "connecting"; // connecting | live | lost | refused
    this.problem = null; // the error if it is not live
    this.state = null; // the newest document
    this.index = null; // rows, or null before the first
    this.indexProblem = null;
    this.all = new History();
    this.byModel = new Map(); // name -> History of its versions together
    this.byVersion = new Map(); // name\nversion -> History
    this.machine = []; // points
    this.errors = new Map(); // identity -> entry
    this.changes = 0; // of the index
    this._failures = 0;
    this._indexAt = -Infinity;
    this._wake = null;
    this._hurried = false; // since the last poll began
    this._newestError = 0;
  }

  /** Poll as long as the page is open. */
  async run() {
    document.addEventListener("visibilitychange", () => this.hurry());
    for (;;) {
      if (document.visibilityState === "hidden") {
        this._pause();
        while (document.visibilityState === "hidden") await this._rest(0);
      }
      const began = performance.now();
      this._hurried = false;
      await this.look();
      const retry = Math.min(SLOWEST_RETRY_MS, LOOK_MS * this._failures);
      const rest = (retry || LOOK_MS) - (performance.now() - began);
      if (!this._hurried) await this._rest(Math.max(50, rest));
    }
  }

  /** Poll now, the index too. */
  hurry() {
    this._indexAt = -Infinity;
    this._hurried = true;
    this._wake?.();
  }

  /** One poll. Never throws. */
  async look() {
    try {
      const state = await askJson(`v2/console?errors_after=${this._newestError}`, {
        seconds: TIMEOUT_SECONDS,
      });
      this._take(state);
      this._failures = 0;
      this._set("live", null);
    } catch (error) {
      this._failures += 1;
      if (this.link === "live" || this.link === "connecting") this._pause();
      this._set(error instanceof Refused ? "refused" : "lost", error);
    }
    const busy = this.index?.some((row) => row.state === "LOADING" || row.state === "UNLOADING");
    const due = performance.now() - this._indexAt >= (busy ? LOOK_MS : INDEX_MS);
    const barred = this.problem?.status === 401; // then one form asks for the key
    if (due && this.link !== "lost" && !barred) await this._askIndex();
    this.dispatchEvent(new Event("look"));
  }

  /** The models: [{ name, versions: [{ version, state, reason }] }], by name. */
  models() {
    const found = new Map();
    const rows =
      this.index ?? (this.state?.models ?? []).map((model) => ({ ...model, state: "READY" }));
    for (const row of rows) {
      const model = found.get(row.name) ?? { name: row.name, versions: [] };
      model.versions.push({
        version: row.version ?? "",
        state: row.state ?? "",
        reason: row.reason ?? "",
      });
      found.set(row.name, model);
    }
    return [...found.values()];
  }

  /** The history of a model, or of one version. */
  history(name, version = "") {
    return version ? this.byVersion.get(`${name}\n${version}`) : this.byModel.get(name);
  }

  /** The newest counters of a model's versions. */
  counters(name, version = "") {
    const models = this.state?.models ?? [];
    return models.filter((each) => each.name === name && (!version || each.version === version));
  }

  async _askIndex() {
    this._indexAt = performance.now();
    try {
      const answer = await ask("v2/repository/index", {
        method: "POST",
        seconds: TIMEOUT_SECONDS,
      });
      const rows = await answer.json();
      if (JSON.stringify(rows) !== JSON.stringify(this.index)) this.changes += 1;
      this.index = rows;
      this.indexProblem = null;
    } catch (error) {
      // Do not rerender for the same error: the user may be typing the required key.
      if (error.message !== this.indexProblem?.message) this.changes += 1;
      this.indexProblem = error;
      if (error instanceof Refused) this.index = null;
    }
  }

  _take(state) {
    const before = this.state;
    if (before && before.server.started_ms !== state.server.started_ms) this._forget();
    const { time_ns: ns, time_ms: ms, duration_edges_ns: edges, models } = state;
    this.all.add(total(models), ns, ms, edges);
    const names = new Map();
    for (const model of models) {
      const key = `${model.name}\n${model.version}`;
      add(this.byVersion, key, [model], ns, ms, edges);
      names.set(model.name, [...(names.get(model.name) ?? []), model]);
    }
    for (const [name, versions] of names) add(this.byModel, name, versions, ns, ms, edges);
    for (const table of [this.byVersion, this.byModel]) {
      const known =
        table === this.byModel ? names : new Set(models.map((m) => `${m.name}\n${m.version}`));
      for (const key of table.keys()) if (!known.has(key)) table.delete(key);
    }
    this._lookAtMachine(before, state, ms);
    for (const entry of state.errors.reverse()) {
      const key = [entry.protocol, entry.place, entry.model, entry.status, entry.text].join("\n");
      this.errors.delete(key);
      this.errors.set(key, entry);
      this._newestError = Math.max(this._newestError, entry.number);
      if (this.errors.size > MOST_ERRORS) this.errors.delete(this.errors.keys().next().value);
    }
    const served = (document) =>
      document?.models.map((m) => `${m.name}\n${m.version}`).join("\n\n");
    if (served(before) !== served(state)) this._indexAt = -Infinity;
    this.state = state;
  }

  _lookAtMachine(before, state, ms) {
    const machine = state.machine ?? {};
    const seconds = before ? (state.time_ns - before.time_ns) / 1e9 : 0;
    const used = (machine.process_cpu_secs ?? 0) - (before?.machine?.process_cpu_secs ?? 0);
    this.machine.push({
      ms,
      cpu: machine.cpu_utilization ?? null,
      process: seconds > 0 && before?.machine ? Math.max(0, used / seconds) : null,
      memory: machine.memory_used_bytes ?? null,
      resident: machine.process_resident_bytes ?? null,
      gpus: state.gpus,
    });
    if (this.machine.length > MOST_POINTS) this.machine.shift();
  }

  /** The server was restarted: discard the old data. */
  _forget() {
    this.all = new History();
    this.byModel.clear();
    this.byVersion.clear();
    this.errors.clear();
    this._newestError = 0;
    this._indexAt = -Infinity;
  }

  /** Polling pauses. */
  _pause() {
    const ms = Date.now();
    for (const history of [this.all, ...this.byModel.values(), ...this.byVersion.values()]) {
      history.gap(ms);
    }
  }

  _set(link, problem) {
    if (link === "live" && this.link === "lost") this._indexAt = -Infinity;
    this.link = link;
    this.problem = problem;
  }

  /** Wait for so long, or (with 0) until `hurry` is called. */
  _rest(ms) {
    return new Promise((resolve) => {
      const timer = ms ? setTimeout(resolve, ms) : 0;
      this._wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

function add(table, key, models, ns, ms, edges) {
  let history = table.get(key);
  if (!history) table.set(key, (history = new History()));
  history.add(total(models), ns, ms, edges);
}
