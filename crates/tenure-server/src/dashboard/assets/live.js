// The live data: one stream for the whole page, read with fetch because EventSource sends no headers.
//
// The stream has two kinds of events. `node` is what the node that served the page knows itself: who leads,
// the other nodes, its store. `queues` is what the leader knows; a standby relays it. Either may stop while
// the other goes on, and the page says which.

import { failure, headers, onUnauthorized } from "./api.js";

/** The server sends at least one event per second; silence for this long is a broken connection. */
const SILENCE_MS = 6000;
const RETRY_MS = [300, 1000, 2000, 4000];
/** A tab that nobody sees gives its connection back. */
const HIDDEN_MS = 60000;
const MOVES_MAX = 50;

export const live = {
  /** connecting, live, lost, refused, resting */
  connection: "connecting",
  /** Why, in words. */
  reason: "",
  since: Date.now(),
  node: null,
  queues: null,
  /** Why there is no news of the queues, if there is none. */
  queuesLost: null,
  /** Daemons that moved since the page was opened, newest first. */
  moves: [],
  /** What this reader's token allows: read, worker or admin. */
  scope: null,
  /** How far this browser's clock is behind the server's. */
  offset: 0,
};

const listeners = new Set();
let controller = null;
let attempt = 0;
let timer = 0;
let silence = 0;
let resting = 0;

/** Calls `listener` after every change; the answer stops that. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** The server's time. */
export const now = () => Date.now() + live.offset;

export function start() {
  document.addEventListener("visibilitychange", () => {
    clearTimeout(resting);
    if (document.hidden) resting = setTimeout(rest, HIDDEN_MS);
    else if (live.connection !== "live") reconnect();
  });
  addEventListener("online", reconnect);
  addEventListener("pageshow", (event) => event.persisted && reconnect());
  open();
}

/** Tries at once, whatever the wait was. */
export function reconnect() {
  attempt = 0;
  open();
}

function rest() {
  stop();
  become("resting", "paused while this tab is hidden");
}

function stop() {
  clearTimeout(timer);
  clearTimeout(silence);
  controller?.abort();
  controller = null;
}

async function open() {
  stop();
  const mine = (controller = new AbortController());
  heard(mine);
  try {
    const options = { headers: headers({ Accept: "text/event-stream" }), cache: "no-store", credentials: "omit", signal: mine.signal };
    const answer = await fetch("v1/dashboard/stream", options);
    if (!answer.ok) throw await failure(answer);
    await read(answer.body.getReader(), mine);
    throw new Error("the broker closed the connection");
  } catch (error) {
    if (mine !== controller) return;
    refused(error);
  }
}

function refused(error) {
  stop();
  if (error.status === 401 || error.status === 403) {
    become("refused", error.message);
    if (error.status === 401) unauthorized?.(error);
    return;
  }
  const silent = error.name === "AbortError";
  become("lost", silent ? "the broker does not answer" : (error.status ? error.message : "cannot reach this broker"));
  timer = setTimeout(open, RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)] * (0.8 + 0.4 * Math.random()));
  attempt += 1;
}

let unauthorized = null;
export function askForToken(handler) {
  unauthorized = handler;
  onUnauthorized(handler);
}

/** Restarts the watch for silence. */
function heard(mine) {
  clearTimeout(silence);
  silence = setTimeout(() => mine === controller && mine.abort(), SILENCE_MS);
}

async function read(reader, mine) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done || mine !== controller) return;
    heard(mine);
    rest += decoder.decode(value, { stream: true });
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) take(event);
  }
}

function take(event) {
  let name = "";
  let data = "";
  for (const line of event.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data += line.slice(5);
  }
  if (!data) return;
  const body = JSON.parse(data);
  if (name === "node") {
    live.offset = body.at - Date.now();
    const before = live.node;
    live.node = { ...body, ...cluster(body) };
    if (before) noteMoves(before, live.node);
  } else if (name === "queues") {
    live.queues = body;
    live.queuesLost = null;
  } else if (name === "queues_lost") {
    live.queuesLost = body;
  } else if (name === "reader") {
    live.scope = body.scope;
  } else {
    return;
  }
  attempt = 0;
  if (live.connection === "live") notify();
  else become("live", "");
}

/** The cluster as the sections want it: who of the nodes leads and stands, and shards as lines of their own. */
function cluster({ cluster: stored, leader, heartbeats = {} }) {
  const loads = new Map();
  for (const { weight, shards } of stored?.daemons ?? []) for (const { node } of shards) if (node) loads.set(node, (loads.get(node) ?? 0) + weight);
  // Only brokers stand in the queue's election, and only they can be handed its lease.
  const brokers = (stored?.elections ?? []).filter((each) => each.name === "tenure.queue");
  const standing = new Set(brokers.flatMap((each) => each.candidates));
  return {
    terms: (stored?.history ?? []).filter((term) => term.term !== leader?.term),
    nodes: (stored?.nodes ?? []).map((node) => {
      const age = node.state === "alive" ? heartbeats[node.incarnation] : null;
      // Nobody evicts a session that holds nothing: it stays "alive" in the store, and is not.
      const state = age > node.ttl_ms ? "silent" : node.state;
      const leads = node.incarnation === leader?.incarnation;
      const load = state === "alive" && stored.daemons?.length ? (loads.get(node.node) ?? 0) : null;
      return { ...node, state, leads, load, heartbeat_age_ms: age, stands: standing.has(node.node) };
    }).sort((one, other) => rank(one) - rank(other) || one.node.localeCompare(other.node)),
    daemons: (stored?.daemons ?? []).flatMap(({ daemon, shards }) =>
      shards.map((shard) => ({ ...shard, name: `${daemon}/${shard.index}`, state: shard.state === "active" ? "running" : shard.state, detail: shard.error }))),
  };
}

/** Who is there comes first. */
const rank = (node) => (node.leads ? 0 : ({ alive: 1, silent: 2 }[node.state] ?? 3));

/** Where each daemon was seen last. */
const places = new Map();

/** Daemons that are elsewhere, or otherwise, than a moment ago. */
function noteMoves(before, after) {
  const known = new Map(before.daemons.map((daemon) => [daemon.name, daemon]));
  for (const daemon of after.daemons) {
    const place = places.get(daemon.name);
    if (daemon.node) places.set(daemon.name, daemon.node);
    const old = known.get(daemon.name);
    if (!old || (old.node === daemon.node && old.state === daemon.state && old.generation === daemon.generation)) continue;
    const from = place && place !== daemon.node ? `${place} → ` : "";
    live.moves.unshift({ at: after.at, detail: `${daemon.name}: ${from}${daemon.node ?? "no node"}, ${daemon.state}, generation ${daemon.generation ?? "–"}` });
  }
  for (const name of places.keys()) if (!after.daemons.some((daemon) => daemon.name === name)) places.delete(name);
  live.moves.splice(MOVES_MAX);
}

function become(connection, reason) {
  if (live.connection !== connection) live.since = Date.now();
  live.connection = connection;
  live.reason = reason;
  notify();
}

function notify() {
  for (const listener of listeners) {
    try {
      listener(live);
    } catch (error) {
      // One part that cannot show its data must not stop the others.
      console.error(error);
    }
  }
}
