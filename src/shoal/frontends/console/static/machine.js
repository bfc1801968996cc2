// CPU, GPU and memory, over time and current.

import { lineChart, meter } from "./charts.js";
import { h, setShown } from "./dom.js";
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
