// Everything at once, small: for the screen that stays open.

import { h, list, panel, text } from "../dom.js";
import { span, visible } from "../format.js";
import { now } from "../live.js";
import { jobLink, nodeColour, setBadge, words } from "../parts.js";
import { timeline } from "../timeline.js";
import { plots, queueTable, rangeChoice } from "./queues.js";

export function overview() {
  const strip = timeline();
  const nodes = h("ul", { class: "chips", "aria-label": "Nodes" });
  const failures = h("ol", { class: "failures" });
  const nothing = h("p", { class: "empty" }, "No attempt has failed since this leader took over.");
  const charts = plots(null, ["depth", "throughput", "pickup", "run", "oldest", "failures"]);
  const table = queueTable();
  const element = h(
    "div",
    { class: "view overview" },
    h("h1", { class: "unseen" }, "Overview"),
    panel("Leadership", { id: "leadership", tools: h("a", { href: "#/cluster", class: "more" }, "terms and nodes") }, strip.element, nodes),
    h("div", { class: "columns uneven" },
      panel("All queues", { id: "flow", tools: rangeChoice(charts) }, charts.element),
      panel("Last failures", { id: "failed", tools: h("a", { href: "#/jobs?state=dead", class: "more" }, "dead jobs") }, nothing, failures)),
    panel("Queues", { id: "queues", tools: h("a", { href: "#/queues", class: "more" }, "limits and more") }, table.element),
  );
  return {
    element,
    stop() {
      charts.stop();
      table.stop();
    },
    update({ node, queues }) {
      strip.update(node, now());
      list(nodes, present(node.nodes), (each) => each.incarnation, chip, showChip);
      if (!queues) return;
      table.update(queues);
      const failed = queues.failures ?? [];
      nothing.hidden = failed.length > 0;
      list(failures, failed.slice(0, 8), (each) => `${each.id} ${each.at}`, failure, (line, each) => text(line.querySelector("time"), `${span(now() - each.at)} ago`));
    },
  };
}

/** Of a node that has come back, only the process that is there. */
function present(nodes) {
  const there = new Set(nodes.filter((each) => each.state === "alive").map((each) => each.node));
  return nodes.filter((each) => each.state === "alive" || !there.has(each.node));
}

function chip(node) {
  return h("li", {}, h("i", { class: `dot node-${nodeColour(node.node)}`, "aria-hidden": "true" }), words(node.node), h("span", { class: "badge" }));
}

function showChip(element, node) {
  setBadge(element.lastChild, node.leads ? "leader" : node.state);
}

function failure(each) {
  return h(
    "li",
    {},
    h("div", {}, jobLink(each.id), " ", words(each.type, "quiet"), h("time", { class: "quiet" })),
    h("p", { class: "reason words" }, h("bdi", {}, visible(each.error) || "no error text")),
    h("small", { class: "quiet" }, `${each.queue} · attempt ${each.attempt}${each.dead ? " · dead" : ""}`),
  );
}
