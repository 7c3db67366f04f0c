// The live data of the page, from the stream of events.
//
// The stream has two kinds of events. `node` is what the node that served the page knows itself: who leads,
// the other nodes, its store. `queues` is what the leader knows; a standby relays it. Either may stop while
// the other goes on, and the page says which.

import { onUnauthorized } from "./api.js";
import { source } from "./tabs.js";

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
  /** Whether calls need a token at all. */
  needsToken: false,
  /** How far this browser's clock is behind the server's. */
  offset: 0,
};

const listeners = new Set();
const stream = source(take);
let resting = 0;

/** Calls `listener` after every change; the answer stops that. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** The queues that there are, to choose from. */
export const queueNames = () => (live.queues?.queues ?? []).map((each) => each.name);

/** The server's time. */
export const now = () => Date.now() + live.offset;

export function start() {
  document.addEventListener("visibilitychange", () => {
    clearTimeout(resting);
    if (document.hidden) resting = setTimeout(rest, HIDDEN_MS);
    else if (live.connection !== "live") reconnect();
  });
  addEventListener("online", () => reconnect());
  // A page that was left may be kept, to come back to, and its connection with it.
  addEventListener("pagehide", () => stream.close());
  addEventListener("pageshow", (event) => event.persisted && reconnect());
  reconnect();
}

/** Tries at once, whatever the wait was. */
export const reconnect = () => stream.open();

/** Lets this connection go for a new one: the reader is logged in or out, in all tabs. */
export const renew = () => stream.open(true);

function rest() {
  stream.close();
  become("resting", "paused while this tab is hidden");
}

let unauthorized = null;
export function askForToken(handler) {
  unauthorized = handler;
  onUnauthorized(handler);
}

function take({ event, data, state, reason, status }) {
  if (state) {
    become(state, reason);
    if (status === 401) unauthorized?.({ message: reason });
    return;
  }
  const body = JSON.parse(data);
  if (event === "node") {
    live.offset = body.at - Date.now();
    const before = live.node;
    live.node = { ...body, ...cluster(body) };
    if (before) noteMoves(before, live.node);
  } else if (event === "queues") {
    live.queues = body;
    live.queuesLost = null;
  } else if (event === "queues_lost") {
    live.queuesLost = body;
  } else if (event === "reader") {
    live.scope = body.scope;
    live.needsToken = body.needs_token;
  } else {
    return;
  }
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
