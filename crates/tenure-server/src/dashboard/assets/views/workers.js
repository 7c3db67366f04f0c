// Workers: who runs what, since when, and who waits for a job.

import { get } from "../api.js";
import { h, list, panel, row, table, text } from "../dom.js";
import { count, moment, span, visible } from "../format.js";
import { now } from "../live.js";
import { jobLink, words } from "../parts.js";

const REFRESH_MS = 2500;
/** The most workers of the table, the busiest first. */
const ROWS = 200;
/** The most queues and types that are named of each. */
const NAMES = 8;

export function workers() {
  const body = h("tbody");
  const nothing = h("p", { class: "empty", role: "status" }, "loading");
  const note = h("p", { class: "note" });
  const heads = ["Worker", ["Running", "number"], ["Waiting", "number"], "Queues", "Types", "Longest job", "For"];
  const controller = new AbortController();
  let timer = 0;
  const refresh = async () => {
    try {
      if (!document.hidden) show(await get("v1/workers", controller.signal));
    } catch (error) {
      if (controller.signal.aborted) return;
      if (!body.firstChild) text(nothing, error.message);
    }
    timer = setTimeout(refresh, REFRESH_MS);
  };
  const tableElement = table("Workers, the busiest first", heads, body);
  const show = (found) => {
    nothing.hidden = found.workers.length > 0;
    tableElement.hidden = found.workers.length === 0;
    text(nothing, "No worker is running a job or waiting for one.");
    const busiest = found.workers.sort((one, other) => other.running - one.running || other.waiting - one.waiting).slice(0, ROWS);
    const cut = found.truncated || busiest.length < found.workers.length;
    note.hidden = !cut;
    text(note, cut ? "There are more workers, or more running jobs, than are listed here." : "");
    list(body, busiest, (each) => each.worker, line, update);
  };
  refresh();
  return {
    element: h("div", { class: "view" }, h("h1", { class: "unseen" }, "Workers"), panel("Workers", { id: "workers", note: "that run a job, or wait for one" }, tableElement, nothing, note)),
    stop() {
      controller.abort();
      clearTimeout(timer);
    },
  };
}

function line(each) {
  const element = row({ worker: "head", running: "number", waiting: "number", queues: "", types: "", oldest: "", since: "time" });
  const cells = element.named;
  cells.worker.append(words(each.worker));
  cells.running.append(h("a", { href: `#/jobs?state=running&search=${encodeURIComponent(each.worker)}` }));
  cells.queues.append(words(""));
  cells.types.append(words(""));
  return element;
}

function update(element, each) {
  const cells = element.named;
  text(cells.running.firstChild, count(each.running));
  text(cells.waiting, each.waiting ? count(each.waiting) : "");
  text(cells.queues.firstChild, names(each.jobs, "queue"));
  text(cells.types.firstChild, names(each.jobs, "type"));
  const [oldest] = each.jobs;
  if (cells.oldest.textContent !== (oldest?.id ?? "")) cells.oldest.replaceChildren(...(oldest ? [jobLink(oldest.id)] : []));
  text(cells.since, oldest ? span(Math.max(0, now() - oldest.since_at)) : "");
  cells.since.title = oldest ? moment(oldest.since_at) : "";
}

const names = (jobs, field) => visible([...new Set(jobs.map((job) => job[field]))].sort().slice(0, NAMES).join(", "));
