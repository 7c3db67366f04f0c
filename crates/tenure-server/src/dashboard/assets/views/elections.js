// Elections: who leads each of them, who would, and one of them in full.

import { get, segment } from "../api.js";
import { h, list, panel, row, table, text } from "../dom.js";
import { count, duration, moment, plural, visible } from "../format.js";
import { badge, facts, nodeColour, setBadge, words } from "../parts.js";

const REFRESH_MS = 2500;
/** What Tenure itself holds elections for. */
const OWN = { "tenure.queue": "who serves the queue", "tenure.cluster": "who assigns daemons" };

export function elections() {
  const body = h("tbody");
  const nothing = h("p", { class: "empty", role: "status" }, "loading");
  const note = h("p", { class: "note" });
  const heads = ["Election", "State", "Leader", ["Term", "number"], "Since", "Candidates"];
  const name = h("input", { id: "election-name", placeholder: "name", autocomplete: "off", required: true });
  const find = h("form", { class: "filters", role: "search", onsubmit: (event) => {
    event.preventDefault();
    location.hash = `#/elections/${segment(name.value.trim())}`;
  } }, h("label", { for: "election-name" }, "Find an election", name), h("button", {}, "Show"));
  const tableElement = table("Elections", heads, body);
  return {
    element: h("div", { class: "view" }, h("h1", { class: "unseen" }, "Elections"), panel("Elections", { id: "elections" }, find, tableElement, nothing, note)),
    update({ node }) {
      if (!node.cluster) return;
      const found = node.cluster.elections ?? [];
      nothing.hidden = found.length > 0;
      tableElement.hidden = found.length === 0;
      text(nothing, "No election has been held in this namespace.");
      text(note, found.length >= 20 ? `The first ${plural(found.length, "election")} by name. Any other can be found by its name.` : "");
      list(body, found, (each) => each.name, line, show);
    },
  };
}

function line(each) {
  const element = row({ name: "head", state: "", leader: "", term: "number", since: "time", candidates: "grow" });
  const cells = element.named;
  cells.name.append(h("a", { href: `#/elections/${segment(each.name)}`, class: "words" }, each.name));
  if (OWN[each.name]) cells.name.append(h("small", {}, ` ${OWN[each.name]}`));
  cells.state.append(badge("led"));
  cells.leader.append(words(""));
  cells.candidates.append(words(""));
  return element;
}

function show(element, each) {
  const cells = element.named;
  setBadge(cells.state.firstChild, each.leader ? "led" : "no leader");
  text(cells.leader.firstChild, each.leader?.node ?? "nobody");
  text(cells.term, each.term ? count(each.term) : "–");
  text(cells.since, each.leader?.since_at ? moment(each.leader.since_at) : "–");
  const names = each.candidates ?? [];
  text(cells.candidates.firstChild, names.length ? visible(names.join(", ")) : "none");
  cells.candidates.firstChild.title = names.join(", ");
}

/** One election. */
export function election(name) {
  const state = badge("loading");
  const about = facts();
  const missing = h("p", { class: "empty", role: "status" }, "loading");
  const body = h("tbody");
  const alone = h("p", { class: "empty", hidden: true }, "There are no candidates.");
  const candidates = panel("Candidates", { id: "candidates" }, table("Candidates", ["Candidate", ["Last heard from", "number"], ["Time to live", "number"], ["", "grow"]], body), alone);
  const facets = panel("Election", { id: "about" }, about.element);
  const controller = new AbortController();
  let timer = 0;
  const refresh = async () => {
    try {
      if (!document.hidden) draw(await get(`v1/elections/${segment(name)}`, controller.signal));
    } catch (error) {
      if (controller.signal.aborted) return;
      missing.hidden = false;
      text(missing, error.message);
    }
    timer = setTimeout(refresh, REFRESH_MS);
  };
  const draw = (found) => {
    const never = !found.term && !found.candidates?.length;
    missing.hidden = !never;
    text(missing, `There is no election ${name}. It begins with its first candidate.`);
    for (const each of [facets, candidates, state]) each.hidden = never;
    setBadge(state, found.leader ? "led" : "no leader");
    about.set("Leader", found.leader ? words(found.leader.node) : "nobody");
    about.set("Term", found.term ? count(found.term) : null);
    about.set("Since", found.leader?.since_at ? moment(found.leader.since_at) : null);
    about.set("For", found.led_for_ms === undefined ? null : duration(found.led_for_ms));
    about.set("Last heard from", found.seen_ago_ms === undefined ? null : `${duration(found.seen_ago_ms)} ago`);
    about.set("Address", found.leader?.address ? words(found.leader.address, "mono") : null);
    about.set("Reserved for", found.reserved_for ? words(found.reserved_for) : null);
    about.set("Request", found.request ? `${found.request.by} asks the leader to ${found.request.to ? `hand over to ${found.request.to}` : "resign"}` : null);
    alone.hidden = Boolean(found.candidates?.length);
    list(body, found.candidates ?? [], (each) => each.id, candidate, (element, each) => {
      text(element.named.seen, each.seen_ago_ms === undefined ? "–" : `${duration(each.seen_ago_ms)} ago`);
      text(element.named.ttl, duration(each.ttl_ms));
    });
  };
  refresh();
  for (const each of [facets, candidates]) each.hidden = true;
  return {
    element: h("div", { class: "view" }, h("div", { class: "title" }, h("h1", { class: "words" }, name), state), missing, facets, candidates),
    stop() {
      controller.abort();
      clearTimeout(timer);
    },
  };
}

function candidate(each) {
  const element = row({ id: "head", seen: "number", ttl: "number", rest: "grow" });
  element.named.id.append(h("i", { class: `dot node-${nodeColour(each.id)}`, "aria-hidden": "true" }), words(each.id));
  return element;
}
