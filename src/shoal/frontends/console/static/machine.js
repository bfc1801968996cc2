// CPU, GPU and memory, over time and current; the processes of a server that has several.

import { lineChart, meter } from "./charts.js";
import { fill, h, setShown } from "./dom.js";
import { bytes, count, percent, plural } from "./format.js";

/** The utilization of CPU and GPU. */
export function machineChart() {
  return lineChart({
    title: "Machine",
    note: "utilization",
    format: percent,
    most: 1,
    series: [
      { name: "CPU", kind: 1, area: true, pick: (point) => point.cpu },
      { name: "GPU", kind: 2, optional: true, pick: (point) => busiest(point.gpus) },
    ],
  });
}

function busiest(gpus) {
  const known = (gpus ?? []).map((gpu) => gpu.utilization).filter((share) => share !== null);
  return known.length ? Math.max(...known) : null;
}

/** Current CPU, memory and GPU figures. */
export function meters() {
  const cpu = meter("CPU");
  const own = meter("Server CPU");
  const memory = meter("Memory");
  const resident = meter("Server memory");
  const gpus = h("div", { class: "gpus" });
  const made = new Map();
  const element = h(
    "section",
    { class: "card plot", "aria-label": "CPU, GPU and memory" },
    h("h3", { class: "plot-title" }, "CPU, GPU and memory"),
    h("div", { class: "meters" }, cpu.element, own.element, memory.element, resident.element, gpus),
  );
  return {
    element,
    update(store) {
      const machine = store.state.machine;
      const point = store.machine[store.machine.length - 1];
      if (machine) {
        const { cores, memory_total_bytes: whole } = machine;
        cpu.update(
          machine.cpu_utilization,
          percent(machine.cpu_utilization),
          cores ? ` of ${plural(cores, "core")}` : "",
        );
        own.update(
          point.process === null ? 0 : point.process / (cores || 1),
          point.process === null ? "–" : `${count(point.process)}`,
          ` core${cores === 1 ? "" : "s"} busy`,
        );
        memory.update(
          machine.memory_used_bytes / whole,
          bytes(machine.memory_used_bytes),
          ` of ${bytes(whole)}`,
        );
        resident.update(
          machine.process_resident_bytes / whole,
          bytes(machine.process_resident_bytes),
          "",
        );
      }
      for (const each of [cpu, own, memory, resident]) setShown(each.element, Boolean(machine));
      store.state.gpus.forEach((gpu, index) => {
        let pair = made.get(gpu.uuid);
        if (!pair) {
          pair = { busy: meter(`GPU ${index}`), memory: meter(`GPU ${index} memory`) };
          made.set(gpu.uuid, pair);
          gpus.append(pair.busy.element, pair.memory.element);
        }
        const watts =
          gpu.power_usage_watts === null ? "" : `, ${Math.round(gpu.power_usage_watts)} W`;
        pair.busy.update(gpu.utilization, percent(gpu.utilization), watts);
        pair.memory.update(
          gpu.memory_used_bytes / gpu.memory_total_bytes,
          bytes(gpu.memory_used_bytes),
          ` of ${bytes(gpu.memory_total_bytes)}`,
        );
      });
      if (!store.state.gpus.length && !gpus.childElementCount)
        gpus.append(h("p", { class: "hint" }, "No NVIDIA GPU found."));
    },
  };
}

/** What each process of the server uses; hidden where there is one. */
export function processTable() {
  const rows = h("tbody", {});
  const element = h(
    "section",
    { class: "card plot", hidden: true },
    h("h3", { class: "plot-title" }, "Processes"),
    h(
      "table",
      { class: "processes" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Process", "PID", "CPU", "Memory", "Connections"].map((name) =>
            h("th", { scope: "col" }, name),
          ),
        ),
      ),
      rows,
    ),
    h("p", { class: "hint" }, "CPU in cores. Clients are connected to the front ends."),
  );
  let before = new Map(); // of the last state: CPU seconds by the number of a process
  let beforeNs = 0;
  return {
    element,
    update(store) {
      const { machine, time_ns: now } = store.state;
      const processes = machine?.processes ?? [];
      setShown(element, processes.length > 0);
      if (!processes.length || now === beforeNs) return;
      const seconds = (now - beforeNs) / 1e9;
      const cores = ({ pid, cpu_secs: used }) =>
        before.has(pid) ? Math.max(0, used - before.get(pid)) / seconds : null;
      fill(
        rows,
        [...processes].sort(byRole).map((each) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, each.name.replace("frontend-", "front end ")),
            h("td", {}, each.pid),
            h("td", {}, count(cores(each))),
            h("td", {}, bytes(each.resident_bytes)),
            h("td", {}, each.connections === null ? "" : count(each.connections)),
          ),
        ),
      );
      before = new Map(processes.map((each) => [each.pid, each.cpu_secs]));
      beforeNs = now;
    },
  };
}

/** The engine and the supervisor first, then front ends by their number. */
function byRole(one, other) {
  const place = ({ name }) => Number(name.split("-")[1] ?? -1);
  return place(one) - place(other) || one.name.localeCompare(other.name);
}
