// The strip on top of every section: who leads, since when, is anything stuck, what failed last and why.

import { attribute, fill, h, text } from "./dom.js";
import { count, duration, plural, rate, span, visible } from "./format.js";
import { live, now } from "./live.js";
import { ledFor, trustBar } from "./parts.js";

export function glance(root) {
  const trust = trustBar();
  const tiles = {
    leader: tile("Leader", "#/cluster", trust.element),
    stuck: tile("Behind", "#/queues"),
    failure: tile("Last failure", "#/jobs?state=dead"),
    oldest: tile("Oldest ready job", "#/queues"),
    flow: tile("Jobs", "#/jobs"),
  };
  fill(root, Object.values(tiles).map((each) => each.element));
  return () => {
    const { node, queues } = live;
    if (!node) return;
    leader(tiles.leader, node);
    trust.update(node.leader && queues && queues.term === node.leader.term ? queues.trust : null);
    if (!queues) return;
    stuck(tiles.stuck, node, queues);
    failure(tiles.failure, queues);
    oldest(tiles.oldest, queues);
    const waiting = queues.counts.ready + queues.counts.scheduled;
    tiles.flow.set(`${count(waiting)} waiting`, `${count(queues.counts.running)} running · submitted ${rate(queues.rates.submitted)} · completed ${rate(queues.rates.completed)}`);
  };
}

function tile(label, href, extra) {
  const value = h("b", { class: "words" });
  const detail = h("span", { class: "detail" });
  const name = h("span", { class: "label" }, label);
  const element = h("a", { class: "tile", href }, name, value, detail, extra);
  return {
    element,
    name: (more) => text(name, label + more),
    set(main, more, level = null, link = href) {
      text(value, main);
      text(detail, more);
      attribute(detail, "title", more);
      attribute(element, "data-level", level);
      attribute(element, "href", link);
    },
  };
}

function leader(tile, node) {
  if (!node.leader) {
    const since = node.leaderless_since_at ? ` for ${span(now() - node.leaderless_since_at)}` : "";
    tile.set("Nobody leads", `last term ${node.term ?? "–"}${since}`, "bad");
    return;
  }
  const here = node.leader.node === node.node ? " (this node)" : "";
  tile.set(`${node.leader.node}${here}`, `term ${node.leader.term} · for ${ledFor(node)}`, "good");
}

function stuck(tile, node, queues) {
  const found = queues.stuck ?? [];
  const bad = found.some((each) => each.level === "bad");
  if (found.length === 0) tile.set("Nothing behind", "no queue is waiting for a worker", "good");
  else {
    const first = found.slice(0, 3).map((each) => `${each.queue}: ${each.detail}`).join(" · ");
    tile.set(plural(found.length, "queue"), found.length > 3 ? `${first} and more` : first, bad ? "bad" : "warn");
  }
}

function failure(tile, queues) {
  const last = queues.failures?.[0];
  tile.name(queues.counts.dead ? ` · ${count(queues.counts.dead)} dead` : "");
  if (!last) {
    tile.set("None", "since this leader took over", queues.counts.dead ? "warn" : "good");
    return;
  }
  tile.set(`${span(now() - last.at)} ago`, `${last.type}: ${visible(last.error) || "no error text"}`, queues.counts.dead ? "warn" : null, `#/jobs/${encodeURIComponent(last.id)}`);
}

function oldest(tile, queues) {
  let first = null;
  for (const queue of queues.queues) {
    if (queue.oldest_ready_at && (!first || queue.oldest_ready_at < first.oldest_ready_at)) first = queue;
  }
  if (!first) {
    tile.set("–", "no job is waiting for a worker", "good");
    return;
  }
  const waits = now() - first.oldest_ready_at;
  const level = first.paused ? "warn" : waits > 60000 ? "warn" : null;
  tile.set(duration(Math.max(0, waits)), `in ${first.name}${first.paused ? " (paused)" : ""}`, level, `#/queues/${encodeURIComponent(first.name)}`);
}
