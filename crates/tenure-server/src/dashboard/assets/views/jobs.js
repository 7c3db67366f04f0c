// Jobs: filter, page, look up, submit; retry, cancel and delete several of them.

import { get, post, query } from "../api.js";
import { action, form, say } from "../dialogs.js";
import { h, list, panel, row, table, text } from "../dom.js";
import { count, moment, span, visible } from "../format.js";
import { live, now, queueNames } from "../live.js";
import { badge, jobLink, setBadge, STATES, words } from "../parts.js";
import { selection } from "../select.js";
import { retryDead } from "./queues.js";
import { welcome } from "./welcome.js";

const PAGE = 50;
const REFRESH_MS = 2500;
/** A search looks at many jobs each time. */
const SEARCH_REFRESH_MS = 15000;

export function jobs(parameters) {
  const filter = { state: parameters.get("state") ?? "", queue: parameters.get("queue") ?? "", type: parameters.get("type") ?? "", search: parameters.get("search") ?? "", before: parameters.get("before") ?? "" };
  const body = h("tbody");
  const state = h("p", { class: "empty", role: "status" }, "loading");
  const older = h("a", { class: "button", hidden: true }, filter.search ? "Search older jobs" : "Older");
  const newest = h("a", { class: "button", href: address({ ...filter, before: "" }), hidden: !filter.before }, "Newest");
  const controller = new AbortController();
  let timer = 0;
  const isFiltered = Object.values(filter).some(Boolean);
  const first = h("div", { hidden: true });
  const tableBox = h("div");
  const show = (page) => {
    const isEmpty = !isFiltered && page.jobs.length === 0;
    if (isEmpty && !first.firstChild) first.append(welcome());
    first.hidden = !isEmpty;
    tableBox.hidden = isEmpty;
    state.hidden = page.jobs.length > 0 || isEmpty;
    selected.update(page.jobs);
    text(state, page.next ? "No match so far. A search covers only part of the jobs at a time, and there are older ones." : "No jobs match.");
    older.hidden = !page.next;
    older.href = address({ ...filter, before: page.next ?? "" });
    list(body, page.jobs, (each) => each.id, (each) => line(each, selected), update);
  };
  const refresh = async () => {
    clearTimeout(timer);
    try {
      if (!document.hidden) show(await get(`v1/dashboard/jobs${query({ ...filter, limit: PAGE })}`, controller.signal));
    } catch (error) {
      if (controller.signal.aborted) return;
      if (!body.firstChild) text(state, error.message);
    }
    timer = setTimeout(refresh, filter.search ? SEARCH_REFRESH_MS : REFRESH_MS);
  };
  const selected = selection(refresh);
  refresh();
  const heads = [[selected.all, "check"], "Job", "State", "Queue", "Type", ["Attempt", "number"], "Changed", "Last error"];
  const element = h("div", { class: "view" }, h("h1", { class: "unseen" }, "Jobs"),
    panel("Jobs", { id: "jobs", note: "newest first", tools: h("div", { class: "buttons" }, submitButton(), !filter.search && retryButton(filter)) },
      filters(filter), selected.bar, tableBox, first, state, h("div", { class: "buttons pages" }, newest, older)));
  tableBox.append(table("Jobs, newest first", heads, body));
  return {
    element,
    stop() {
      controller.abort();
      clearTimeout(timer);
    },
  };
}

const address = (filter) => `#/jobs${query(filter)}`;

function filters(filter) {
  const state = h("select", { id: "filter-state" }, h("option", { value: "" }, "any state"), STATES.map((each) => h("option", { value: each }, each)));
  state.value = filter.state;
  const names = h("datalist", { id: "queue-names" }, queueNames().map((each) => h("option", { value: each })));
  const queue = h("input", { id: "filter-queue", list: "queue-names", value: filter.queue, placeholder: "any queue", autocomplete: "off" });
  const type = h("input", { id: "filter-type", value: filter.type, placeholder: "any type", autocomplete: "off" });
  const search = h("input", { id: "filter-search", type: "search", value: filter.search, placeholder: "id, key, worker, error, payload…", autocomplete: "off", maxlength: "200" });
  const id = h("input", { id: "filter-id", placeholder: "full id", autocomplete: "off", class: "mono" });
  const go = () => {
    location.hash = address({ state: state.value, queue: queue.value.trim(), type: type.value.trim(), search: search.value.trim() });
  };
  state.addEventListener("change", go);
  return h("form", {
    class: "filters", role: "search",
    onsubmit: (event) => {
      event.preventDefault();
      if (id.value.trim()) location.hash = `#/jobs/${encodeURIComponent(id.value.trim())}`;
      else go();
    },
  },
  h("label", { for: "filter-state" }, "State", state), h("label", { for: "filter-queue" }, "Queue", queue), names,
  h("label", { for: "filter-type" }, "Type", type), h("label", { for: "filter-search", class: "grow" }, "Text", search), h("label", { for: "filter-id" }, "Id", id), h("button", { class: "primary" }, "Search"));
}

function line(job, selected) {
  const element = row({ check: "check", id: "head", state: "", queue: "", type: "", attempt: "number", changed: "time", error: "grow" });
  const cells = element.named;
  cells.check.append(selected.box(job));
  cells.id.append(jobLink(job.id));
  cells.queue.append(words(job.queue));
  cells.type.append(words(job.type));
  cells.state.append(badge(job.state));
  cells.error.append(words(""));
  return element;
}

function update(element, job) {
  const cells = element.named;
  setBadge(cells.state.firstChild, job.state, job.blocked ? "ready, in a group" : job.state);
  text(cells.attempt, `${count(job.attempt)} of ${count(job.max_attempts)}`);
  text(cells.changed, `${span(now() - job.changed_at)} ago`);
  cells.changed.title = moment(job.changed_at);
  text(cells.error.firstChild, visible(job.error));
  cells.error.firstChild.title = visible(job.error);
}

function retryButton(filter) {
  const narrowed = filter.queue || filter.type;
  const number = () => (narrowed ? undefined : live.queues?.counts.dead);
  const wanted = Object.fromEntries(["queue", "type"].filter((name) => filter[name]).map((name) => [name, filter[name]]));
  return action(narrowed ? "Retry matching dead jobs" : "Retry all dead jobs", () => retryDead(wanted, number()));
}

function submitButton() {
  return action("Submit a job…", () => submitForm(), { kind: "primary", needs: "worker" });
}

/** The form for a new job, perhaps like another. */
export function submitForm(like = {}) {
  // Made once per form, so that a second press after a lost answer cannot enqueue it twice.
  const id = randomId();
  form({
    title: "Submit a job",
    action: "Submit",
    fields: [
      { name: "queue", label: "Queue", value: like.queue ?? "default", suggestions: queueNames(), required: true },
      { name: "type", label: "Type", value: like.type ?? "", required: true },
      { name: "payload", label: "Payload, any JSON", kind: "json", value: JSON.stringify(like.payload === undefined ? {} : like.payload, null, 2) },
      { name: "priority", label: "Priority", kind: "number", value: like.priority ?? "", hint: "Higher priorities run first." },
      { name: "delay_ms", label: "Delay", kind: "duration", hint: "For example 30s, 5m or 2h." },
      { name: "max_attempts", label: "Maximum attempts", kind: "number", value: like.max_attempts ?? "" },
      { name: "unique_key", label: "Unique key", hint: "While a job with this key is unfinished, the queue accepts no other." },
      { name: "group", label: "Group", value: like.group ?? "", hint: "Jobs of a group run one at a time, in order." },
    ],
    submit: async (values) => {
      const job = { id, queue: values.queue, type: values.type, payload: values.payload };
      for (const name of ["priority", "delay_ms", "max_attempts"]) if (values[name] !== "") job[name] = Number(values[name]);
      for (const name of ["unique_key", "group"]) if (values[name]) job[name] = values[name];
      const { jobs: [answer] } = await post("v1/jobs", job);
      say(answer.status === "created" ? `job ${answer.id} is submitted` : `not submitted: ${answer.status}${answer.existing ? ` of ${answer.existing}` : ""}`, answer.status === "created" ? "good" : "bad");
      if (answer.status === "created") location.hash = `#/jobs/${encodeURIComponent(answer.id)}`;
    },
  });
  return null;
}

/** Random; `crypto.randomUUID` is missing where the page came over plain HTTP from another host. */
function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
