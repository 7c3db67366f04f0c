// Storage: what this node asks of the store, how the log grows, and what that may cost.

import { h, list, panel, row, table, text } from "../dom.js";
import { bytes, count, duration, moment, rate, span } from "../format.js";
import { now } from "../live.js";
import { facts, figure, percentiles } from "../parts.js";

/** What the big object stores ask for a thousand requests, in dollars, rounded: see the note on the page. */
const PRICES = { write: 0.005, read: 0.0004 };
const WRITES = new Set(["put", "list"]);

export function storage() {
  const figures = { requests: figure("Requests"), commits: figure("Commits"), latency: figure("Commit p95"), size: figure("Commit size"), log: figure("Log since snapshot"), cost: figure("Estimated cost") };
  const body = h("tbody");
  const about = facts();
  const heads = ["Request", ["Now", "number"], ["Total", "number"], ["Failed", "number"], ["p50 · p95 · p99", "number"], ["Per day", "number"]];
  const note = h("p", { class: "note" });
  const element = h("div", { class: "view" }, h("h1", { class: "unseen" }, "Storage"),
    h("div", { class: "figures" }, Object.values(figures).map((each) => each.element)),
    panel("Requests by kind", { id: "requests" }, table("Requests of this node by kind", heads, body), note),
    panel("Log", { id: "log", note: "of the leader", tools: h("a", { href: "#/raw", class: "more" }, "commits and objects as they are stored") }, about.element));
  return {
    element,
    update({ node, queues }) {
      const store = node.store;
      if (store) requests(store, node, figures, body, note);
      if (queues?.log) log(queues.log, figures, about);
    },
  };
}

function requests(store, node, figures, body, note) {
  const all = store.operations.reduce((sum, each) => sum + each.per_second, 0);
  figures.requests.set(rate(all), `${bytes(store.read_bytes)} read, ${bytes(store.written_bytes)} written`);
  list(body, store.operations, (each) => each.operation, line, show);
  const perDay = store.operations.reduce((sum, each) => sum + (each.per_second * 86400 * (WRITES.has(each.operation) ? PRICES.write : PRICES.read)) / 1000, 0);
  if (store.billed) figures.cost.set(`$${perDay < 0.1 ? perDay.toFixed(3) : perDay.toFixed(2)} a day`, "at this rate, this node");
  else figures.cost.set("$0 a day", `${store.engine} does not charge per request`);
  text(note, `Store: ${store.location}. Requests of this node since ${moment(node.started_at)}; rates and percentiles over the last minute.${store.billed ? ` The cost is an estimate at $${PRICES.write} per 1,000 writes and lists and $${PRICES.read} per 1,000 reads, not including traffic and storage.` : ""}`);
}

function line(each) {
  const element = row({ operation: "head", now: "number", total: "number", failed: "number", latency: "number", day: "number" });
  text(element.named.operation, each.operation);
  return element;
}

function show(element, each) {
  const cells = element.named;
  text(cells.now, rate(each.per_second));
  text(cells.total, count(each.count));
  text(cells.failed, count(each.failed));
  percentiles(cells.latency, each.latency);
  text(cells.day, count(Math.round(each.per_second * 86400)));
}

function log(log, figures, about) {
  figures.commits.set(rate(log.commits_per_second), `${count(log.commits)} since it started`);
  figures.latency.set(duration(log.commit?.p95_ms), log.commit ? `p50 ${duration(log.commit.p50_ms)} · p99 ${duration(log.commit.p99_ms)}` : "");
  figures.size.set(bytes(log.commit_bytes_mean), "on average");
  figures.log.set(bytes(log.bytes_since_snapshot), `position ${count(log.position)}`);
  about.set("Position", count(log.position));
  about.set("Commands", count(log.records));
  about.set("Last snapshot", log.snapshot ? moment(log.snapshot.at) : "none since it started");
  about.set("Snapshot age", log.snapshot ? `${span(now() - log.snapshot.at)} old, ${bytes(log.snapshot.bytes)}` : null);
  about.set("Snapshot at position", log.snapshot ? count(log.snapshot.position) : null);
  about.set("Waiting for a commit", log.waiting === undefined ? null : count(log.waiting));
  about.set("Turned away", log.turned_away === undefined ? null : count(log.turned_away));
  about.set("Recovery took", log.recovery_ms === undefined || log.recovery_ms === null ? null : duration(log.recovery_ms));
}
