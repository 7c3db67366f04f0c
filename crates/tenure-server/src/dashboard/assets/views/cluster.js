// Leadership, nodes and daemons.

import { post, segment } from "../api.js";
import { action, confirm } from "../dialogs.js";
import { attribute, h, list, panel, row, table, text } from "../dom.js";
import { clock, count, duration, moment, visible } from "../format.js";
import { now } from "../live.js";
import { badge, facts, ledFor, nodeColour, setBadge, trustBar, words } from "../parts.js";
import { terms, timeline } from "../timeline.js";

export function cluster() {
  const leadership = leadershipPart();
  const nodes = nodesPart();
  const daemons = daemonsPart();
  const element = h("div", { class: "view" }, h("h1", { class: "unseen" }, "Cluster"), leadership.element, nodes.element, daemons.element);
  return {
    element,
    update(live) {
      leadership.update(live);
      nodes.update(live.node);
      daemons.update(live);
    },
  };
}

function leadershipPart() {
  const trust = trustBar();
  const trustText = h("span", { class: "note" });
  const about = facts();
  const strip = timeline();
  const past = terms();
  let leader = null;
  const resign = action("Resign…", async () => {
    if (!leader) throw new Error("there is no leader");
    const sure = await confirm({ title: `Ask ${leader.node} to resign?`, detail: "It ends its work, releases the lease and waits for a while. Another candidate takes over; if there is none, it leads again.", action: "Resign" });
    if (!sure) return null;
    await post("v1/leader/resign");
    return `${leader.node} was asked to resign`;
  }, { kind: "danger" });
  const element = panel("Leadership", { id: "leadership", tools: resign },
    about.element, h("div", { class: "trust" }, trust.element, trustText), strip.element, past.element);
  return {
    element,
    update({ node, queues }) {
      leader = node.leader;
      about.set("Leader", node.leader ? words(node.leader.node) : "nobody");
      about.set("Term", node.leader?.term ?? node.term ?? null);
      about.set("Since", node.leader ? moment(node.leader.since_at) : node.leaderless_since_at ? `nobody since ${moment(node.leaderless_since_at)}` : null);
      about.set("For", node.leader ? ledFor(node) : null);
      about.set("Address", node.leader?.address ? words(node.leader.address, "mono") : null);
      about.set("This node", `${node.node}, ${node.role}`);
      const known = node.leader && queues?.term === node.leader.term ? queues.trust : null;
      trust.update(known);
      text(trustText, known ? `trust ${duration(known.remaining_ms)} of ${duration(known.full_ms)}: the leader may act for that long without another confirmed heartbeat` : "");
      strip.update(node, now());
      past.update(node, now());
    },
  };
}

function nodesPart() {
  const body = h("tbody");
  const heads = ["Node", "State", ["Last heartbeat", "number"], ["Time to live", "number"], ["Load", "number"], "Labels", "Address", "Joined", "Actions"];
  return {
    element: panel("Nodes", { id: "nodes" }, table("Nodes", heads, body)),
    update(node) {
      list(body, node.nodes ?? [], (each) => each.incarnation, line, (element, each) => show(element, each, node));
    },
  };

  function line(each) {
    const element = row({ node: "head", state: "", heartbeat: "number", ttl: "number", load: "number", labels: "", address: "", joined: "time", actions: "" });
    const cells = element.named;
    cells.node.append(h("i", { class: `dot node-${nodeColour(each.node)}`, "aria-hidden": "true" }), words(each.node));
    cells.state.append(badge(each.state));
    cells.address.append(words("", "mono"));
    const transfer = action("Transfer", async () => {
      const sure = await confirm({ title: `Let ${each.node} lead?`, detail: "The leader ends its work and hands the lease to this node. No other node can take it.", action: "Transfer" });
      if (!sure) return null;
      await post("v1/leader/transfer", { node: each.node });
      return `the leader was asked to hand over to ${each.node}`;
    });
    const drain = action("Drain", async () => {
      if (element.drained) {
        await post(`v1/nodes/${segment(each.node)}/undrain`);
        return `${each.node} may run daemons again`;
      }
      const sure = await confirm({ title: `Drain ${each.node}?`, detail: "Its daemons move to other nodes, and it gets no new ones until you undrain it.", action: "Drain" });
      if (!sure) return null;
      await post(`v1/nodes/${segment(each.node)}/drain`);
      return `${each.node} is draining`;
    });
    element.drain = drain;
    element.transfer = transfer;
    cells.actions.append(h("div", { class: "buttons" }, transfer, drain));
    return element;
  }

  function show(element, each, node) {
    const cells = element.named;
    setBadge(cells.state.firstChild, each.leads ? "leader" : each.state === "alive" && (each.drained || each.going) ? "draining" : each.state);
    text(cells.heartbeat, each.heartbeat_age_ms === null || each.heartbeat_age_ms === undefined ? "–" : `${duration(each.heartbeat_age_ms)} ago`);
    attribute(cells.heartbeat, "data-level", each.state === "alive" && each.heartbeat_age_ms > each.ttl_ms * 0.6 ? "warn" : null);
    text(cells.ttl, duration(each.ttl_ms));
    text(cells.load, each.load === undefined || each.load === null ? "–" : each.capacity ? `${count(each.load)} of ${count(each.capacity)}` : count(each.load));
    const labels = Object.entries(each.labels ?? {});
    list(cells.labels, labels, ([name]) => name, () => h("span", { class: "label-chip words" }), (chip, [name, value]) => text(chip, `${name}=${value}`));
    text(cells.address.firstChild, each.address ?? "–");
    text(cells.joined, moment(each.joined_at));
    element.transfer.hidden = each.leads || each.state !== "alive" || !each.stands;
    element.drained = each.drained;
    text(element.drain, each.drained ? "Undrain" : "Drain");
    element.drain.hidden = each.state !== "alive" || !node.daemons?.length;
  }
}

function daemonsPart() {
  const body = h("tbody");
  const nothing = h("p", { class: "empty" }, "There are no daemons in this namespace.");
  const moves = h("ol", { class: "moves" });
  const tableElement = table("Daemons", ["Daemon", "Node", "State", ["Generation", "number"], "Since", "Detail"], body);
  return {
    element: panel("Daemons", { id: "daemons" }, tableElement, nothing, moves),
    update({ node, moves: moved }) {
      const daemons = node.daemons;
      nothing.hidden = daemons.length > 0;
      tableElement.hidden = daemons.length === 0;
      list(body, daemons, (each) => each.name, line, show);
      list(moves, moved, (each) => `${each.at} ${each.detail}`, (each) => h("li", {}, h("time", {}, clock(each.at)), " ", words(each.detail)), () => {});
    },
  };

  function line(each) {
    const element = row({ name: "head", node: "", state: "", generation: "number", since: "time", detail: "grow" });
    element.named.name.append(words(each.name));
    element.named.node.append(words(""));
    element.named.state.append(badge(each.state));
    element.named.detail.append(h("bdi"));
    return element;
  }

  function show(element, each) {
    const cells = element.named;
    text(cells.node.firstChild, each.node ?? "–");
    setBadge(cells.state.firstChild, each.state);
    text(cells.generation, each.generation ?? "–");
    text(cells.since, each.since_at ? moment(each.since_at) : "–");
    text(cells.detail.firstChild, visible(each.detail));
  }
}
