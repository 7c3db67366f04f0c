// The page: header, what is wrong, the strip at a glance, and one section at a time, chosen by the address's hash.

import { askToken, tokenFound } from "./dialogs.js";
import { attribute, fill, h, panel, text } from "./dom.js";
import { clock, moment, showsUtc, showUtc, span, visible, zone } from "./format.js";
import { glance } from "./glance.js";
import { askForToken, live, now, renew, start, subscribe } from "./live.js";
import { activity } from "./views/activity.js";
import { cluster } from "./views/cluster.js";
import { election, elections } from "./views/elections.js";
import { job } from "./views/job.js";
import { jobs } from "./views/jobs.js";
import { outboxes } from "./views/outboxes.js";
import { overview } from "./views/overview.js";
import { queue, queues } from "./views/queues.js";
import { raw } from "./views/raw.js";
import { schedule, schedules } from "./views/schedules.js";
import { storage } from "./views/storage.js";
import { workers } from "./views/workers.js";

const place = (id) => document.getElementById(id);
const updateGlance = glance(place("glance"));
let view = null;

/** `#/queues/mail?x=1` → the section and what it is to show. */
function route() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [section = "", name, ...more] = path.split("/").map(decoded);
  const parameters = new URLSearchParams(search);
  const views = new Map(Object.entries({
    "": () => overview(),
    queues: () => (name ? queue(name) : queues()),
    jobs: () => (name ? job(name) : jobs(parameters)),
    schedules: () => (name ? schedule(name) : schedules()),
    workers: () => workers(),
    activity: () => activity(),
    elections: () => (name ? election(name) : elections()),
    cluster: () => cluster(),
    outboxes: () => outboxes(),
    storage: () => storage(),
    raw: () => raw(parameters),
  }));
  const takesName = ["queues", "jobs", "schedules", "elections"].includes(section);
  const isKnown = views.has(section) && more.length === 0 && (takesName || !name);
  return { section, view: isKnown ? views.get(section) : () => nowhere(path), title: [name, section].filter(Boolean).join(" · ") };
}

function nowhere(path) {
  const element = h("div", { class: "view" },
    panel("There is no such page", { id: "nowhere" },
      h("p", { class: "empty" }, "Nothing is at ", h("code", { class: "words" }, `#/${visible(path)}`), "."), h("a", { class: "button", href: "#/" }, "Go to the overview")));
  element.prepend(h("h1", { class: "unseen" }, "Not found"));
  return { element };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function go(event) {
  // The skip link, and nothing else, has a hash that is no section.
  if (location.hash && !location.hash.startsWith("#/")) return;
  const next = route();
  view?.stop?.();
  view = next.view();
  const root = fill(place("main"), view.element);
  document.title = next.title ? `${next.title} · Tenure` : "Tenure";
  for (const link of place("sections").children) {
    const here = link.getAttribute("href").replace(/^#\/?/, "") === next.section;
    attribute(link, "aria-current", here ? "page" : null);
    if (here) link.scrollIntoView({ block: "nearest", inline: "center" });
  }
  if (event) {
    root.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  update();
}

function update() {
  if (live.connection === "live") tokenFound();
  header();
  banner();
  updateGlance();
  if (live.node) view?.update?.(live);
}

function header() {
  const connection = place("connection");
  connection.dataset.state = live.connection;
  text(connection, { live: "live", connecting: "connecting", lost: "no connection", refused: "no access", resting: "paused" }[live.connection]);
  document.body.dataset.stale = String(live.connection !== "live" || Boolean(live.queuesLost));
  if (live.scope) document.body.dataset.scope = live.scope;
  if (!live.node) return;
  text(place("where"), `${live.node.namespace} on ${live.node.node}`);
  text(place("footer"), `tenure ${live.node.version} · node ${live.node.node} up for ${span(now() - live.node.started_at)}${place("zone").hidden ? " · times are UTC" : ""}`);
}

function showZone() {
  text(place("zone"), showsUtc() ? "times are UTC; show local times" : `times are ${zone()}; show UTC`);
  // For a reader who lives in it there is nothing to choose.
  place("zone").hidden = !showsUtc() && zone() === "UTC";
}

/** What is wrong, in one plain sentence; nothing if nothing is. */
function trouble() {
  const { connection, reason, node, queues, queuesLost } = live;
  const seen = queues ? ` This page shows the state at ${clock(queues.at)}.` : "";
  if (connection === "refused") return ["bad", `Access refused: ${reason}.`];
  if (connection === "lost") return ["bad", `No connection for ${span(Date.now() - live.since)}: ${reason}.${seen} Trying again.`];
  if (connection === "resting") return ["warn", `Paused while this tab was hidden.${seen}`];
  if (!node) return null;
  if (node.role === "failed") return ["bad", `This broker's queue has stopped: ${node.detail}.`];
  if (!node.leader) {
    const since = node.leaderless_since_at ? ` since ${moment(node.leaderless_since_at)} (${span(now() - node.leaderless_since_at)})` : "";
    return ["bad", `Nobody leads${since}. Jobs are neither accepted nor handed out until a broker is elected.${seen}`];
  }
  if (node.cluster_problem && connection === "live" && !queuesLost) return ["warn", `Cannot read the store: ${node.cluster_problem}. Nodes and terms show what was read last.`];
  if (queuesLost) {
    const recovering = queuesLost.code === "recovering";
    const what = recovering ? `${node.leader.node} was elected in term ${node.leader.term} and is reading the log` : `Cannot get the queues from the leader ${node.leader.node}: ${queuesLost.detail}`;
    return [recovering ? "warn" : "bad", `${what}.${seen}`];
  }
  return null;
}

function banner() {
  const element = place("banner");
  const found = trouble();
  element.hidden = !found;
  if (!found) return;
  element.dataset.level = found[0];
  const before = element.textContent;
  // Seconds that tick must not be read out again and again: only another sentence is.
  attribute(element, "aria-live", before.replaceAll(/\d+/g, "") === found[1].replaceAll(/\d+/g, "") ? "off" : "assertive");
  text(element, found[1]);
}

place("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const next = dark ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("tenure.theme", next);
});
const standing = () => (live.needsToken ? `This browser is logged in with a token for ${live.scope}. Another token replaces it.` : "This broker does not ask for a token.");
place("token").addEventListener("click", () => askToken(live.connection === "refused" ? `Access refused: ${live.reason}.` : standing(), renew));
askForToken((problem) => askToken(`This broker asks for a token: ${problem.message}.`, renew, true));

place("zone").addEventListener("click", () => {
  showUtc(!showsUtc());
  showZone();
  go();
});
showZone();

addEventListener("hashchange", go);
subscribe(update);
// Durations go on while no news comes, and that is when they matter.
setInterval(() => live.connection !== "live" && update(), 1000);
go();
start();

