// The worker that all tabs of a browser share: it holds one connection to the broker, and passes on what comes. A browser
// opens six connections to a host, so with one each the seventh tab would get nothing.
//
// Tabs of different versions of the page may meet here after an upgrade, so what is said is little: a tab sends `open` (also to
// try again at once), `again` (also if it is connected), `here` every few seconds, and `away`; it gets what stream.js tells, as it is.

import { connection } from "./stream.js";

/** A tab that was not heard from for this long is gone: nobody is told when one crashes. */
const GONE_MS = 45000;

/** Tabs, and when each was heard from last. */
const tabs = new Map();
/** The newest event of each kind, for tabs that come later. */
const last = new Map();
let isOpen = false;

const stream = connection((message) => {
  if (message.state) last.clear();
  else last.set(message.event, message);
  if (message.event === "queues") last.delete("queues_lost");
  if (message.state === "refused") isOpen = false;
  for (const tab of tabs.keys()) tab.postMessage(message);
});

function away(tab) {
  tabs.delete(tab);
  if (tabs.size > 0) return;
  stream.close();
  last.clear();
  isOpen = false;
}

function take(tab, word) {
  if (word === "away") {
    away(tab);
    return;
  }
  const isNew = !tabs.has(tab);
  tabs.set(tab, Date.now());
  if (isNew) for (const message of last.values()) tab.postMessage(message);
  if (!isOpen || word === "again" || (word === "open" && last.size === 0)) {
    isOpen = true;
    stream.open();
  }
}

addEventListener("connect", ({ ports: [tab] }) => {
  tab.addEventListener("message", ({ data }) => take(tab, data));
  tab.start();
});

setInterval(() => {
  for (const [tab, heard] of tabs) if (Date.now() - heard > GONE_MS) away(tab);
}, GONE_MS / 3);
