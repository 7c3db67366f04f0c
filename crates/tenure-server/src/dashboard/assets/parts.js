// Small pieces that several sections show alike.

import { attribute, h, text } from "./dom.js";
import { count, duration, span, visible } from "./format.js";
import { now } from "./live.js";

/** What a reader calls the states, in the order a job passes them. */
export const STATES = ["scheduled", "ready", "running", "completed", "cancelled", "dead"];

/** A word with a colour that means the same everywhere. */
export function badge(word) {
  return h("span", { class: "badge", "data-word": word }, word);
}

export function setBadge(element, word, label = word) {
  attribute(element, "data-word", word);
  text(element, label);
}

/** A user's own words: kept apart from the page's writing direction, cut off by style, whole in the title. */
export function words(value, kind = "") {
  const shown = visible(value);
  return h("bdi", { class: `words ${kind}`, title: shown }, shown);
}

/** p50, p95 and p99 in one cell. */
export function percentiles(element, values) {
  const parts = values ? [values.p50_ms, values.p95_ms, values.p99_ms].map(duration) : [];
  text(element, parts.length ? parts.join(" · ") : "–");
}

/** The same as [p95, all three], of which the style sheet shows what fits; `percentilesHead` is what stands above them. */
export function setPercentiles(element, values) {
  if (!element.firstChild) element.append(h("span", { class: "p95" }), h("span", { class: "p50-95-99" }));
  text(element.firstChild, duration(values?.p95_ms));
  percentiles(element.lastChild, values);
}

export const percentilesHead = (label) => [[h("span", { class: "p95" }, `${label} p95`), h("span", { class: "p50-95-99" }, `${label} p50 · 95 · 99`)], "number wide-only"];

/** How much of the trust is left. It moves between two updates by itself, if the reader likes motion. */
export function trustBar() {
  const bar = h("div", { class: "bar-fill" });
  const element = h("div", { class: "bar", role: "meter", "aria-label": "Trust remaining", "aria-valuemin": "0" }, bar);
  return {
    element,
    update(trust) {
      element.hidden = !trust;
      if (!trust) return;
      const full = Math.max(trust.full_ms, 1);
      const part = Math.min(1, Math.max(0, trust.remaining_ms / full));
      bar.style.setProperty("--part", part.toFixed(4));
      element.dataset.level = part > 0.5 ? "good" : part > 0.2 ? "low" : "bad";
      attribute(element, "aria-valuemax", full);
      attribute(element, "aria-valuenow", Math.round(trust.remaining_ms));
      attribute(element, "aria-valuetext", `${duration(trust.remaining_ms)} of ${duration(full)}`);
    },
  };
}

/** A definition list that keeps its elements: `set(name, value)`; null hides a line. */
export function facts() {
  const element = h("dl", { class: "facts" });
  const lines = new Map();
  return {
    element,
    set(name, value) {
      let line = lines.get(name);
      if (!line) {
        line = h("div", {}, h("dt", {}, name), h("dd"));
        lines.set(name, line);
        element.append(line);
      }
      line.hidden = value === null || value === undefined;
      const place = line.lastChild;
      if (value instanceof Node) place.replaceChildren(value);
      else text(place, value);
    },
  };
}

/** A number with its name. */
export function figure(label) {
  const value = h("b");
  const detail = h("small");
  const element = h("div", { class: "figure" }, h("span", {}, label), value, detail);
  return {
    element,
    set(number, more = "", level = null) {
      text(value, number);
      text(detail, more);
      attribute(element, "data-level", level);
    },
  };
}

/** The colour of a node: the same for one name on every page. */
export function nodeColour(name) {
  let sum = 7;
  for (const character of String(name)) sum = (sum * 31 + character.codePointAt(0)) >>> 0;
  return sum % 6;
}

/** A link to a job. */
export function jobLink(id) {
  return h("a", { href: `#/jobs/${encodeURIComponent(id)}`, class: "mono words", title: id }, id);
}

/** "3 of 5", or only "3" when nothing limits it. */
export const ofLimit = (value, limit) => (limit ? `${count(value)} of ${count(limit)}` : count(value));

/** How long the leader has led, as the broker counts it and its clock goes on: the leader's own clock may be another one. */
export function ledFor(node) {
  if (node.leader.for_ms === null) return "–";
  const led = span(node.leader.for_ms + Math.max(0, now() - node.at));
  return node.leader.for_at_least ? `at least ${led}` : led;
}
