// The page: header, what is wrong, the strip at a glance, and one section at a time, chosen by the address's hash.

import { token } from "./api.js";
import { askToken } from "./dialogs.js";
import { attribute, fill, text } from "./dom.js";
import { clock, moment, span } from "./format.js";
import { glance } from "./glance.js";
import { askForToken, live, now, reconnect, start, subscribe } from "./live.js";
import { cluster } from "./views/cluster.js";
import { job } from "./views/job.js";
import { jobs } from "./views/jobs.js";
import { overview } from "./views/overview.js";
import { queue, queues } from "./views/queues.js";
import { schedules } from "./views/schedules.js";
import { storage } from "./views/storage.js";

const place = (id) => document.getElementById(id);
const updateGlance = glance(place("glance"));
let view = null;

/** `#/queues/mail?x=1` → the section and what it is to show. */
function route() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [section = "", name] = path.split("/").map(decoded);
  const parameters = new URLSearchParams(search);
  const views = {
    "": () => overview(),
    queues: () => (name ? queue(name) : queues()),
    jobs: () => (name ? job(name) : jobs(parameters)),
    cluster: () => cluster(),
    schedules: () => schedules(),
    storage: () => storage(),
  };
  return { section, view: views[section] ?? views[""], title: [name, section].filter(Boolean).join(" · ") };
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
  }
  if (event) {
    root.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  update();
}

function update() {
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
  text(place("footer"), `tenure ${live.node.version} · node ${live.node.node} up for ${span(now() - live.node.started_at)} · times are ${Intl.DateTimeFormat().resolvedOptions().timeZone}`);
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
place("token").addEventListener("click", () => askToken(token() ? "Change it, or clear the field to remove it." : "Not needed unless this broker asks for one.", reconnect));
askForToken((problem) => askToken(`This broker asks for a token: ${problem.message}.`, reconnect));

addEventListener("hashchange", go);
subscribe(update);
// Durations go on while no news comes, and that is when they matter.
setInterval(() => live.connection !== "live" && update(), 1000);
go();
start();

