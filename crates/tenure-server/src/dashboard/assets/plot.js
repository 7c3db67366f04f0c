// Plots: lines and stacked areas over time, drawn as SVG so that the style sheet colours them.
//
// A plot is a picture with a name. Its legend holds the numbers as text: the newest ones, or those under the
// pointer or the arrow keys.

import { attribute, fill, h, text } from "./dom.js";
import { clock, minute, short } from "./format.js";

const HEIGHT = 132;
const PADDING = { top: 6, right: 4, bottom: 18, left: 44 };

/**
 * @param title   the plot's name
 * @param series  [{key, label, colour}], for areas from the bottom up
 * @param kind    "line" or "area"
 * @param scale   "count", "rate" or "time": what is a round number on the axis
 * @param format  numbers to text, for the legend
 */
export function plot({ title, series, kind = "line", scale = "count", format = short }) {
  const picture = h("svg", { class: "plot", role: "img", tabindex: "0", "aria-label": title, height: HEIGHT });
  const layers = h("g");
  const cursor = h("line", { class: "cursor", visibility: "hidden" });
  picture.append(layers, cursor);
  const when = h("span", { class: "when" });
  const values = new Map();
  const legend = h("ul", { class: "legend" }, series.map((each) => {
    const value = h("b");
    values.set(each.key, value);
    return h("li", {}, h("i", { class: `key ${each.colour}`, "aria-hidden": "true" }), each.label, " ", value);
  }));
  const element = h("figure", {}, h("figcaption", {}, h("span", { class: "name" }, title), when), legend, picture);
  let data = null;
  let width = 480;
  let at = null;

  const draw = () => data && render();
  new ResizeObserver(([entry]) => {
    const next = Math.round(entry.contentRect.width);
    if (next > 0 && next !== width) {
      width = next;
      draw();
    }
  }).observe(picture);

  picture.addEventListener("pointermove", (event) => {
    if (!data) return;
    const box = picture.getBoundingClientRect();
    const part = (event.clientX - box.left - PADDING.left) / (width - PADDING.left - PADDING.right);
    point(Math.round(part * (data.length - 1)));
  });
  picture.addEventListener("pointerleave", () => point(null));
  picture.addEventListener("blur", () => point(null));
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -12, PageDown: 12 }[event.key];
    if (!step || !data) return;
    event.preventDefault();
    point((at ?? data.length - 1) + step);
  });

  function point(index) {
    at = index === null || !data ? null : Math.min(data.length - 1, Math.max(0, index));
    label();
  }

  function label() {
    const index = at ?? data.length - 1;
    for (const each of series) {
      const value = data.columns[each.key]?.[index];
      text(values.get(each.key), value === null || value === undefined ? "–" : format(value));
    }
    text(when, at === null ? "" : clock(data.until_at - (data.length - 1 - at) * data.step_ms));
    attribute(cursor, "visibility", at === null ? "hidden" : "visible");
    if (at !== null) {
      const x = across(at);
      for (const [name, value] of [["x1", x], ["x2", x], ["y1", PADDING.top], ["y2", HEIGHT - PADDING.bottom]]) attribute(cursor, name, value);
    }
  }

  const across = (index) => {
    const inner = width - PADDING.left - PADDING.right;
    return round(PADDING.left + (data.length < 2 ? inner : (index / (data.length - 1)) * inner));
  };

  function render() {
    attribute(picture, "viewBox", `0 0 ${width} ${HEIGHT}`);
    const stacked = kind === "area" ? stack(data, series) : null;
    const top = ceiling[scale](highest(data, series, stacked));
    const up = (value) => round(HEIGHT - PADDING.bottom - (value / top) * (HEIGHT - PADDING.top - PADDING.bottom));
    const shapes = [...grid(top, up, width, scale === "time" ? unit : format), ...times(data, across, width)];
    if (kind === "area") {
      series.forEach((each, index) => shapes.push(h("path", { class: `area ${each.colour}`, d: band(stacked[index], stacked[index - 1], across, up) })));
    } else {
      for (const each of series) {
        const values = data.columns[each.key] ?? [];
        shapes.push(h("path", { class: `stroke ${each.colour}`, d: line(values, across, up) }), h("path", { class: `dots ${each.colour}`, d: dots(values, across, up) }));
      }
    }
    fill(layers, shapes);
    label();
    const summary = series.map((each) => `${each.label} ${values.get(each.key).textContent}`).join(", ");
    attribute(picture, "aria-label", `${title}: ${summary}`);
  }

  return {
    element,
    /** `next`: {until_at, step_ms, length, columns: {key: [numbers or null]}} */
    update(next) {
      data = next;
      if (data && data.length > 0) render();
    },
  };
}

/** A line without axes, for a table's cell. */
export function spark(values) {
  const width = 96;
  const height = 22;
  const picture = h("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  const top = Math.max(1, ...values);
  const across = (index) => round((index / Math.max(1, values.length - 1)) * (width - 2) + 1);
  const up = (value) => round(height - 2 - (value / top) * (height - 4));
  if (values.length > 1) {
    const outline = line(values, across, up);
    picture.append(h("path", { class: "spark-area", d: `${outline}L${across(values.length - 1)} ${height}L1 ${height}Z` }), h("path", { class: "spark-line", d: outline }));
  }
  return picture;
}

/** A path that is broken where there is no value. */
function line(values, across, up) {
  let path = "";
  let drawing = false;
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      drawing = false;
      return;
    }
    path += `${drawing ? "L" : "M"}${across(index)} ${up(value)}`;
    drawing = true;
  });
  return path;
}

/** The values that have no neighbour to draw a line to: with few jobs, most of them. */
function dots(values, across, up) {
  const there = (index) => values[index] !== null && values[index] !== undefined;
  return values.map((value, index) => (there(index) && !there(index - 1) && !there(index + 1) ? `M${across(index)} ${up(value)}h.01` : "")).join("");
}

function stack(data, series) {
  const below = new Array(data.length).fill(0);
  return series.map((each) => (data.columns[each.key] ?? []).map((value, index) => (below[index] += value ?? 0)));
}

function band(upper, lower, across, up) {
  if (upper.length === 0) return "";
  const there = upper.map((value, index) => `${index ? "L" : "M"}${across(index)} ${up(value)}`).join("");
  const back = upper.map((_, index) => upper.length - 1 - index).map((index) => `L${across(index)} ${up(lower ? lower[index] : 0)}`).join("");
  return `${there}${back}Z`;
}

function highest(data, series, stacked) {
  let top = 0;
  const columns = stacked ? [stacked.at(-1) ?? []] : series.map((each) => data.columns[each.key] ?? []);
  for (const column of columns) for (const value of column) if (value > top) top = value;
  return top;
}

/** The next round number whose half is round too. */
const ceiling = {
  count: (value) => Math.max(2, decimal(value)),
  rate: decimal,
  time: (value) => (value <= 20000 ? decimal(value) : (TIMES.find((step) => step >= value) ?? Math.ceil(value / 2 / DAY) * 2 * DAY)),
};

function decimal(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 10].map((step) => step * unit).find((step) => step >= value) ?? 10 * unit;
}

const DAY = 86400000;
const TIMES = [60, 120, 240, 600, 1200, 3600, 7200, 14400, 28800, 86400].map((seconds) => seconds * 1000);

/** A time on an axis: one unit is enough. */
function unit(milliseconds) {
  const units = [[DAY, "d"], [3600000, "h"], [60000, "m"], [1000, "s"]];
  const [size, name] = units.find(([each]) => milliseconds >= each) ?? [1, "ms"];
  return `${Math.round((milliseconds / size) * 10) / 10} ${name}`;
}

function grid(top, up, width, format) {
  return [0, 0.5, 1].flatMap((part) => {
    const y = up(top * part);
    return [
      h("line", { class: "grid", x1: PADDING.left, x2: width - PADDING.right, y1: y, y2: y }),
      h("text", { class: "tick", x: PADDING.left - 6, y: y + 3.5, "text-anchor": "end" }, format(top * part)),
    ];
  });
}

/** As many times as there is room for, each at a point of its own. */
function times(data, across, width) {
  const isShort = (data.length - 1) * data.step_ms < 600000;
  const room = Math.floor((width - PADDING.left - PADDING.right) / (isShort ? 74 : 56));
  const parts = Math.max(1, Math.min(4, room, data.length - 1));
  return Array.from({ length: parts + 1 }, (_, part) => {
    const index = Math.round(((data.length - 1) * part) / parts);
    const at = data.until_at - (data.length - 1 - index) * data.step_ms;
    // With one point there is one time, at the right where the point is.
    if (data.length < 2 && part === 0) return null;
    const anchor = part === 0 ? "start" : part === parts ? "end" : "middle";
    return h("text", { class: "tick", x: across(index), y: HEIGHT - 4, "text-anchor": anchor }, isShort ? clock(at) : minute(at));
  }).filter(Boolean);
}

const round = (value) => Math.round(value * 10) / 10;
