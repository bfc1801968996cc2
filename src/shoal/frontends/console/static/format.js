// Formats numbers, times and sizes.

const NOTHING = "–";

function finite(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function digits(value, most) {
  return value.toLocaleString("en", { maximumFractionDigits: most });
}

/** 0.04, 3.1, 42, 1,234, 12.3k, 4.5M */
export function count(value) {
  if (!finite(value)) return NOTHING;
  const size = Math.abs(value);
  if (size >= 1e9) return `${digits(value / 1e9, 1)}G`;
  if (size >= 1e6) return `${digits(value / 1e6, 1)}M`;
  if (size >= 1e4) return `${digits(value / 1e3, 1)}k`;
  if (size >= 10) return digits(value, 0);
  if (size >= 1) return digits(value, 1);
  return digits(value, 2);
}

/** 840 µs, 1.2 ms, 35 ms, 2.4 s, from milliseconds */
export function duration(milliseconds) {
  if (!finite(milliseconds)) return NOTHING;
  const size = Math.abs(milliseconds);
  if (size === 0) return "0 ms";
  if (size < 1) return `${digits(milliseconds * 1000, size < 0.01 ? 1 : 0)} µs`;
  if (size < 1000) return `${digits(milliseconds, size < 10 ? 1 : 0)} ms`;
  return `${digits(milliseconds / 1000, size < 10000 ? 1 : 0)} s`;
}

/** 1.5 GiB */
export function bytes(value) {
  if (!finite(value)) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${digits(value, value < 10 && unit ? 1 : 0)} ${units[unit]}`;
}

/** 12 %, from a share */
export function percent(share) {
  if (!finite(share)) return NOTHING;
  const value = share * 100;
  return `${digits(value, value < 10 && value > 0 ? 1 : 0)} %`;
}

/** 3 s ago, 5 min ago, 2 h ago, from two moments in milliseconds */
export function ago(then, now) {
  const seconds = Math.max(0, (now - then) / 1000);
  if (seconds < 2) return "just now";
  if (seconds < 100) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

/** 12 s, 3 min, 4 h, 2 days */
export function span(milliseconds) {
  return ago(0, milliseconds).replace(" ago", "").replace("just now", "1 s");
}

/** A shape: [1, 3, 224, 224] */
export function shape(dims) {
  return `[${dims.join(", ")}]`;
}

/** A tensor's element in few characters */
export function element(value) {
  if (typeof value === "bigint" || typeof value === "boolean") return String(value);
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** 1 model, 2 models */
export function plural(number, word) {
  return `${digits(number, 0)} ${word}${number === 1 ? "" : "s"}`;
}
