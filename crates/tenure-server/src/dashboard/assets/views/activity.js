// Activity: what happened to jobs, as it happens, the newest first.

import { get } from "../api.js";
import { h, list, panel, row, table, text } from "../dom.js";
import { clock, moment, visible } from "../format.js";
import { jobLink, words } from "../parts.js";
import { sentence } from "./job.js";

const REFRESH_MS = 2000;

export function activity() {
  const body = h("tbody");
  const nothing = h("p", { class: "empty", role: "status" }, "loading");
  const note = h("p", { class: "note" });
  const controller = new AbortController();
  let timer = 0;
  const tableElement = table("What happened, the newest first", ["Job", "What happened", "Worker", "Error", "Time"], body);
  const show = (found) => {
    nothing.hidden = found.entries.length > 0;
    tableElement.hidden = found.entries.length === 0;
    text(nothing, "Nothing has happened since this leader took over.");
    text(note, `Since ${moment(found.since_at)}, when this leader took over.`);
    list(body, found.entries, (each) => `${each.id} ${each.at} ${each.event} ${each.attempt ?? ""}`, line, () => {});
  };
  const refresh = async () => {
    try {
      if (!document.hidden) show(await get("v1/dashboard/activity", controller.signal));
    } catch (error) {
      if (controller.signal.aborted) return;
      if (!body.firstChild) text(nothing, error.message);
    }
    timer = setTimeout(refresh, REFRESH_MS);
  };
  refresh();
  return {
    element: h("div", { class: "view" }, h("h1", { class: "unseen" }, "Activity"), panel("Activity", { id: "activity", note: "of jobs, the newest first" }, tableElement, nothing, note)),
    stop() {
      controller.abort();
      clearTimeout(timer);
    },
  };
}

function line(each) {
  const element = row({ job: "head", what: "", worker: "", error: "", at: "time" });
  const cells = element.named;
  text(cells.at, clock(each.at));
  cells.at.title = moment(each.at);
  cells.job.append(jobLink(each.id));
  text(cells.what, sentence(each));
  if (each.worker) cells.worker.append(words(each.worker));
  if (each.error) cells.error.append(h("bdi", { class: "words reason", title: visible(each.error) }, visible(each.error)));
  return element;
}
