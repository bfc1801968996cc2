// Line charts, bars and shares as SVG, rendered at their size on screen.
//
// A chart is a figure: its caption names it, its legend has the newest values (or those under the
// pointer), and its description has the same for a screen reader.

import { freshId, h, setShown, setText, svg } from "./dom.js";
import { percent, span } from "./format.js";

const LEFT = 46;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 20;
const SHORTEST_MS = 60_000;
const LONGEST_MS = 300_000;
const SPARK_MS = 15_000; // so that a line of few points is visible

/** Round numbers from 0 to a little more than `most`: [0, 5, 10, 15]. */
export function ticks(most, wanted = 4) {
  if (!(most > 0)) return [0, 1];
  const rough = most / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= rough * 0.999) * power;
  const found = [];
  for (let index = 0; index <= Math.ceil(most / step - 1e-9); index += 1) found.push(index * step);
  return found;
}

/** Round numbers for a scale of ratios: [0.1, 1, 10, 100], with more of them in a short range. */
export function ratioTicks(least, most) {
  if (!(most > 0)) return [0.1, 1];
  const low = Math.floor(Math.log10(Math.max(least, most / 1e6)) + 1e-9);
  const high = Math.max(low + 1, Math.ceil(Math.log10(most) - 1e-9));
  const steps = high - low < 3 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = low; power < high; power += 1)
    found.push(...steps.map((step) => Number((step * 10 ** power).toPrecision(3))));
  found.push(Number((10 ** high).toPrecision(3)));
  return found.filter(
    (mark, index) => (found[index + 1] ?? Infinity) >= least && (found[index - 1] ?? 0) <= most,
  );
}

/** The path of a line, with gaps where there is no value. */
export function path(points, x, y, pick) {
  let text = "";
  let drawing = false;
  for (const point of points) {
    const value = pick(point);
    if (value === null || value === undefined) {
      drawing = false;
      continue;
    }
    text += `${drawing ? "L" : "M"}${x(point.ms).toFixed(1)} ${y(value).toFixed(1)}`;
    drawing = true;
  }
  return text;
}

/**
 * Lines over time. `series`: [{ name, pick(point), kind: 1…4, area, optional }]; an optional one is
 * hidden while it has no values. `format` formats a value. With `ratios` the scale is logarithmic,
 * so that a median is visible beside its 99th percentile. `update(points, now)` renders them, unless
 * the chart is off screen.
 */
export function lineChart({
  title,
  note = "",
  series,
  format,
  most = 0,
  ratios = false,
  height = 168,
}) {
  const drawing = svg("svg", { class: "chart", height, role: "img", "aria-label": title });
  const grid = svg("g", { class: "grid" });
  const curves = series.map(({ kind, area }) => ({
    area: area ? svg("path", { class: `area s${kind}` }) : null,
    line: svg("path", { class: `line s${kind}` }),
    dot: svg("circle", { class: `dot s${kind}`, r: 3.5, visibility: "hidden" }),
  }));
  const rule = svg("line", { class: "rule", visibility: "hidden" });
  const empty = svg("text", { class: "nothing", "text-anchor": "middle" }, "No traffic yet");
  drawing.append(grid, ...curves.flatMap((curve) => [curve.area, curve.line]).filter(Boolean));
  drawing.append(rule, ...curves.map((curve) => curve.dot), empty);

  const values = series.map(() => h("b", {}, "–"));
  const when = h("span", { class: "when" });
  const keys = series.map(({ name, kind }, index) =>
    h("span", { class: "key" }, h("i", { class: `swatch s${kind}` }), `${name} `, values[index]),
  );
  const legend = h("p", { class: "legend", "aria-hidden": "true" }, keys, when);
  const figure = h(
    "figure",
    { class: "card plot" },
    h("figcaption", {}, h("span", { class: "plot-title" }, title), note && h("small", {}, note)),
    legend,
    drawing,
  );

  let shown = { points: [], now: Date.now() };
  let pointer = null; // x of the pointer inside the chart
  let width = 0;

  const observer = new ResizeObserver(([entry]) => {
    const wide = Math.round(entry.contentRect.width);
    if (wide !== width) {
      width = wide;
      draw();
    }
  });
  observer.observe(drawing);
  drawing.addEventListener("pointermove", (event) => {
    pointer = event.clientX - drawing.getBoundingClientRect().left;
    draw();
  });
  drawing.addEventListener("pointerleave", () => {
    pointer = null;
    draw();
  });

  function draw() {
    const { points, now } = shown;
    if (width < 60) return;
    const oldest = points.length ? points[0].ms : now;
    const long = Math.min(LONGEST_MS, Math.max(SHORTEST_MS, now - oldest));
    const visible = points.filter((point) => point.ms >= now - long);
    let highest = most;
    let lowest = Infinity;
    for (const { pick } of series) {
      for (const point of visible) {
        highest = Math.max(highest, pick(point) ?? 0);
        lowest = Math.min(lowest, pick(point) || Infinity);
      }
    }
    const marks = ratios ? ratioTicks(lowest, highest) : ticks(highest || 1);
    const bottom = marks[0];
    const top = marks[marks.length - 1];
    const inner = width - LEFT - RIGHT;
    const floor = height - BOTTOM;
    const x = (ms) => LEFT + inner * (1 - (now - ms) / long);
    const share = (value) =>
      ratios ? Math.log(Math.max(value, bottom) / bottom) / Math.log(top / bottom) : value / top;
    const y = (value) => floor - (floor - TOP) * share(value);

    grid.replaceChildren();
    for (const mark of marks) {
      grid.append(
        svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(mark), y2: y(mark) }),
        svg("text", { x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, format(mark)),
      );
    }
    grid.append(
      svg("text", { x: LEFT, y: height - 4 }, `${span(long)} ago`),
      svg("text", { x: width - RIGHT, y: height - 4, "text-anchor": "end" }, "now"),
    );
    let any = false;
    series.forEach(({ pick, optional }, index) => {
      const line = path(visible, x, y, pick);
      any ||= line !== "";
      if (optional) setShown(keys[index], line !== "");
      curves[index].line.setAttribute("d", line);
      if (curves[index].area)
        curves[index].area.setAttribute("d", area(visible, x, y, pick, floor));
    });
    empty.setAttribute("x", LEFT + inner / 2);
    empty.setAttribute("y", height / 2);
    empty.setAttribute("visibility", any ? "hidden" : "visible");

    const at =
      pointer === null ? null : nearest(visible, now - long * (1 - (pointer - LEFT) / inner));
    const point = at ?? lastWith(visible, series);
    series.forEach(({ pick }, index) => {
      const value = point ? pick(point) : null;
      setText(values[index], value === null || value === undefined ? "–" : format(value));
      const { dot } = curves[index];
      const marked = at && value !== null && value !== undefined;
      dot.setAttribute("visibility", marked ? "visible" : "hidden");
      if (marked) {
        dot.setAttribute("cx", x(at.ms));
        dot.setAttribute("cy", y(value));
      }
    });
    rule.setAttribute("visibility", at ? "visible" : "hidden");
    if (at) {
      for (const [name, value] of [
        ["x1", x(at.ms)],
        ["x2", x(at.ms)],
        ["y1", TOP],
        ["y2", floor],
      ]) {
        rule.setAttribute(name, value);
      }
    }
    setText(when, at ? `${span(now - at.ms)} ago` : "");
    const named = series.filter((_, index) => !keys[index].hidden);
    drawing.setAttribute("aria-label", described(title, named, visible, format));
  }

  return {
    element: figure,
    update(points, now) {
      shown = { points, now };
      draw();
    },
    close() {
      observer.disconnect();
    },
  };
}

function area(points, x, y, pick, floor) {
  let text = "";
  let run = [];
  const close = () => {
    if (run.length > 1) {
      const line = run.map(([left, up]) => `L${left.toFixed(1)} ${up.toFixed(1)}`).join("");
      text += `M${run[0][0].toFixed(1)} ${floor}${line}L${run[run.length - 1][0].toFixed(1)} ${floor}Z`;
    }
    run = [];
  };
  for (const point of points) {
    const value = pick(point);
    if (value === null || value === undefined) close();
    else run.push([x(point.ms), y(value)]);
  }
  close();
  return text;
}

function nearest(points, ms) {
  let best = null;
  for (const point of points) {
    if (!best || Math.abs(point.ms - ms) < Math.abs(best.ms - ms)) best = point;
  }
  return best;
}

/** The newest point, or the newest of the last seconds that has values. */
function lastWith(points, series) {
  for (let index = points.length - 1; index >= Math.max(0, points.length - 3); index -= 1) {
    const found = series.some(({ pick }) => (pick(points[index]) ?? null) !== null);
    if (found) return points[index];
  }
  return points[points.length - 1] ?? null;
}

function described(title, series, points, format) {
  const told = series.map(({ name, pick }) => {
    const values = points.map(pick).filter((value) => value !== null && value !== undefined);
    if (!values.length) return `${name}: no data yet`;
    const newest = format(values[values.length - 1]);
    return `${name}: ${newest}, between ${format(Math.min(...values))} and ${format(Math.max(...values))}`;
  });
  return `${title}. ${told.join("; ")}.`;
}

/** A sparkline, as wide as its container. */
export function sparkline(height = 28) {
  const width = 120;
  const line = svg("path", { class: "line s1" });
  const below = svg("path", { class: "area s1" });
  const element = svg(
    "svg",
    {
      class: "spark",
      height,
      viewBox: `0 0 ${width} ${height}`,
      preserveAspectRatio: "none",
      "aria-hidden": "true",
    },
    below,
    line,
  );
  return {
    element,
    update(points, now, pick) {
      const oldest = points.length ? points[0].ms : now;
      const long = Math.min(SHORTEST_MS, Math.max(SPARK_MS, now - oldest));
      const visible = points.filter((point) => point.ms >= now - long);
      const most = Math.max(1e-9, ...visible.map((point) => pick(point) ?? 0));
      const x = (ms) => width * (1 - (now - ms) / long);
      const y = (value) => height - 2 - (height - 4) * (value / most);
      line.setAttribute("d", path(visible, x, y, pick));
      below.setAttribute("d", area(visible, x, y, pick, height));
    },
  };
}

/** A stacked bar of parts: [{ name, kind, value }]; `format` formats a value. */
export function shareBar(label, format) {
  const bar = h("div", { class: "shares", role: "img" });
  const list = h("dl", { class: "share-list" });
  return {
    element: h("div", { class: "share-box" }, bar, list),
    update(parts) {
      const sum = parts.reduce((all, part) => all + (part.value ?? 0), 0);
      bar.replaceChildren();
      list.replaceChildren();
      if (!sum) {
        bar.append(h("span", { class: "shares-empty" }, "No data yet: send a request."));
        bar.setAttribute("aria-label", `${label}: no data yet`);
        return;
      }
      for (const { name, kind, value } of parts) {
        const piece = h("span", { class: `share s${kind}` });
        piece.style.flexGrow = String((value ?? 0) / sum);
        bar.append(piece);
        list.append(
          h(
            "div",
            {},
            h("dt", {}, h("i", { class: `swatch s${kind}` }), name),
            h("dd", {}, h("b", {}, format(value)), h("small", {}, percent(value / sum))),
          ),
        );
      }
      const told = parts.map(
        ({ name, value }) => `${name} ${format(value)}, ${percent(value / sum)}`,
      );
      bar.setAttribute("aria-label", `${label}: ${told.join("; ")}`);
    },
  };
}

/** A column chart: [{ label, value }]. */
export function columns(title, items, format) {
  const most = Math.max(...items.map((item) => item.value), 1e-9);
  const id = freshId("columns");
  return h(
    "figure",
    { class: "columns", "aria-labelledby": id },
    h("figcaption", { id }, title),
    h(
      "ol",
      {},
      items.map(({ label, value }) => {
        const bar = h("span", { class: "column" });
        bar.style.height = `${Math.max(value ? 2 : 0, (100 * value) / most)}%`;
        return h(
          "li",
          {},
          h("span", { class: "column-value" }, format(value)),
          h("span", { class: "column-room", "aria-hidden": "true" }, bar),
          h("span", { class: "column-label" }, label),
        );
      }),
    ),
  );
}

/** A bar from 0 to 1 with its label. */
export function meter(label) {
  const bar = h("span", { class: "meter-fill" });
  const value = h("b", {}, "–");
  const words = h("small", {});
  const element = h(
    "div",
    { class: "meter" },
    h("span", { class: "meter-label" }, label),
    h("span", { class: "meter-value" }, value, words),
    h("span", { class: "meter-room", "aria-hidden": "true" }, bar),
  );
  return {
    element,
    update(share, text, more = "") {
      bar.style.width = `${Math.min(100, Math.max(0, 100 * (share ?? 0)))}%`;
      setText(value, text);
      setText(words, more);
    },
  };
}
