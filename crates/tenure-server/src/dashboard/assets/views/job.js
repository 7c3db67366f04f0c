// One job: what it is, how it stands, and what happened to it.

import { get, post, remove, segment } from "../api.js";
import { action, confirm } from "../dialogs.js";
import { fill, h, list, panel, text } from "../dom.js";
import { bytes, duration, moment, pretty, span, visible } from "../format.js";
import { now } from "../live.js";
import { badge, facts, setBadge, words } from "../parts.js";
import { submitForm } from "./jobs.js";

const REFRESH_MS = 1500;
/** Longer texts are shown in part until the reader asks. */
const SHOWN_MAX = 12000;

export function job(id) {
  const state = badge("loading");
  const about = facts();
  const missing = h("p", { class: "empty", role: "status" }, "loading");
  const blocks = { error: block("Last error"), progress: block("Progress"), result: block("Result"), payload: block("Payload") };
  const history = h("ol", { class: "history" });
  const limits = h("p", { class: "note" });
  const path = `v1/jobs/${segment(id)}`;
  const controller = new AbortController();
  let timer = 0;
  let shown = null;
  const refresh = async () => {
    clearTimeout(timer);
    try {
      const [found, past] = await Promise.all([get(path, controller.signal), get(`v1/dashboard/jobs/${segment(id)}/history`, controller.signal)]);
      shown = found;
      show(found);
      showHistory(past);
    } catch (error) {
      if (controller.signal.aborted) return;
      if (error.status === 404 || error.code === "invalid_field") gone();
      else {
        missing.hidden = Boolean(shown);
        text(missing, error.message);
      }
    }
    if (!controller.signal.aborted) timer = setTimeout(refresh, REFRESH_MS);
  };
  const acted = (word, run) => async () => {
    await run();
    await refresh();
    return word;
  };
  const buttons = {
    retry: action("Retry", acted("it runs again", () => post(`${path}/retry`)), { kind: "primary" }),
    cancel: action("Cancel", async () => {
      const sure = await confirm({ title: "Cancel this job?", detail: "If it is running, its worker stops it at the next heartbeat.", action: "Cancel the job" });
      return sure ? acted("cancelled, or its worker will stop it", () => post(`${path}/cancel`))() : null;
    }),
    forget: action("Delete", async () => {
      const sure = await confirm({ title: "Delete this job?", detail: "This deletes its payload and result too, and cannot be undone.", action: "Delete the job" });
      if (!sure) return null;
      await remove(path);
      location.hash = "#/jobs";
      return "the job is deleted";
    }),
    again: action("Submit a similar job…", () => submitForm(shown ?? {}), { needs: "worker" }),
  };

  function gone() {
    missing.hidden = false;
    text(missing, shown ? "This job was deleted." : "There is no job with this id. It may have been deleted, or its retention may be over.");
    setBadge(state, "missing", shown ? "deleted" : "not found");
    details.hidden = !shown;
    for (const button of Object.values(buttons)) button.hidden = true;
  }

  function show(found) {
    details.hidden = false;
    buttons.again.hidden = Boolean(found.remnant);
    missing.hidden = !found.remnant;
    text(missing, found.remnant ? "This job was deleted. Its id and final state are kept for a while, so that it is not accepted twice." : "");
    setBadge(state, found.state, found.blocked ? "ready, in a group" : found.state);
    const finished = ["completed", "cancelled", "dead"].includes(found.state);
    buttons.retry.hidden = found.remnant || !["dead", "cancelled", "scheduled"].includes(found.state);
    buttons.cancel.hidden = finished;
    buttons.forget.hidden = found.remnant || !finished;
    about.set("Queue", h("a", { href: `#/queues/${segment(found.queue)}` }, found.queue));
    about.set("Type", words(found.type));
    about.set("Attempt", `${found.attempt} of ${found.max_attempts}`);
    about.set("Priority", found.priority || null);
    about.set("Submitted", moment(found.created_at));
    about.set(found.state === "scheduled" ? "Runs at" : "Due at", moment(found.run_at));
    about.set("Since", `${moment(found.changed_at)} (${span(now() - found.changed_at)})`);
    about.set("Worker", found.worker ? words(found.worker) : null);
    about.set("Claim lasts", found.lease_ms ? `${duration(found.lease_ms)} after each heartbeat` : null);
    about.set("Cancellation", found.cancel_requested ? "requested; its worker will stop it" : null);
    about.set("Unique key", found.unique_key ? words(found.unique_key) : null);
    about.set("Group", found.group ? words(found.group) : null);
    about.set("Trace", found.traceparent ? h("span", { class: "mono words", title: found.traceparent }, found.traceparent.slice(3, 35)) : null);
    about.set("Sequence number", found.sequence ?? null);
    blocks.error.set(found.error ? visible(found.error) : null);
    blocks.progress.set(found.progress === undefined || found.progress === null ? null : pretty(found.progress));
    blocks.result.set(found.result === undefined || found.result === null ? null : pretty(found.result));
    blocks.payload.set(found.remnant ? null : pretty(found.payload));
  }

  function showHistory(past) {
    text(limits, past.complete ? "Everything since it was submitted." : `Since ${moment(past.since_at)}, when this leader took over. Earlier events are not kept.`);
    list(history, past.entries, (each) => `${each.at} ${each.event} ${each.attempt ?? ""}`, entry, () => {});
  }

  const details = h("div", { class: "columns", hidden: true },
    h("div", { class: "stack" }, panel("Job", { id: "about" }, about.element), panel("History", { id: "history" }, limits, history)),
    h("div", { class: "stack" }, Object.values(blocks).map((each) => each.element)));
  const element = h("div", { class: "view" },
    h("div", { class: "title" }, h("h1", { class: "mono words", title: id }, id), state, h("div", { class: "buttons" }, Object.values(buttons))),
    missing,
    details);
  for (const button of Object.values(buttons)) button.hidden = true;
  refresh();
  return {
    element,
    stop() {
      controller.abort();
      clearTimeout(timer);
    },
  };
}

/** A text of a user, at first not more of it than can be read. */
function block(title) {
  const content = h("pre", { tabindex: "0" });
  const all = h("button", { type: "button", hidden: true });
  const element = panel(title, { id: title.toLowerCase().replaceAll(" ", "-"), tools: all });
  element.append(content);
  element.hidden = true;
  let whole = "";
  let open = false;
  const draw = () => {
    text(content, open || whole.length <= SHOWN_MAX ? whole : `${whole.slice(0, SHOWN_MAX)}…`);
    all.hidden = whole.length <= SHOWN_MAX;
    text(all, open ? "Show less" : `Show all ${bytes(whole.length)}`);
  };
  all.addEventListener("click", () => {
    open = !open;
    draw();
  });
  return {
    element,
    set(value) {
      element.hidden = value === null || value === undefined || value === "";
      if (element.hidden || value === whole) return;
      whole = value;
      draw();
    },
  };
}

function entry(each) {
  const line = h("li", { "data-word": each.event }, h("time", {}, moment(each.at)), h("b", {}, sentence(each)));
  if (each.error) line.append(h("p", { class: "reason" }, h("bdi", {}, visible(each.error))));
  if (each.worker) line.append(fill(h("span", { class: "quiet" }), "by ", words(each.worker)));
  return line;
}

/** What happened, in words. */
export function sentence(each) {
  const attempt = each.attempt ? `attempt ${each.attempt}` : "";
  const said = {
    submitted: "submitted",
    ready: "ready to be claimed",
    claimed: `claimed, ${attempt}`,
    completed: "completed",
    failed: `${attempt} failed${each.run_at ? `, next at ${moment(each.run_at)}` : ""}`,
    died: `${attempt} failed, now dead`,
    released: "handed back; the attempt does not count",
    cancelled: "cancelled",
    cancel_requested: "cancellation requested",
    retried: "retried manually",
    moved: "moved to another queue",
    forgotten: "deleted",
  };
  return said[each.event] ?? each.event;
}
