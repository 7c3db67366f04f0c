// Schedules: what runs when, what became of its runs, and the form for one.

import { get, post, Problem, put, remove, segment, query } from "../api.js";
import { action, confirm, form, say } from "../dialogs.js";
import { fill, h, list, panel, row, table, text } from "../dom.js";
import { count, moment, pretty, span, visible } from "../format.js";
import { now, queueNames } from "../live.js";
import { badge, facts, jobLink, setBadge, words } from "../parts.js";

const REFRESH_MS = 3000;
/** Runs are searched for among all jobs. */
const RUNS_REFRESH_MS = 10000;
const RUNS = 20;

const EXAMPLES = [["*/5 * * * *", "every 5 minutes"], ["0 * * * *", "every hour"], ["30 7 * * *", "every day at 07:30"], ["30 7 * * mon-fri", "on weekdays at 07:30"], ["0 6 * * mon", "on Mondays at 06:00"], ["0 0 1 * *", "on the first of the month"]];
const MISSED = [["once", "run once, for all of them"], ["skip", "skip them"], ["all", "run each of them"]];

/** Asks again and again until it is stopped. */
function repeated(refresh, pause) {
  const controller = new AbortController();
  let timer = 0;
  const next = async () => {
    clearTimeout(timer);
    try {
      await refresh(controller.signal);
    } finally {
      if (!controller.signal.aborted) timer = setTimeout(next, document.hidden ? 30000 : pause);
    }
  };
  next();
  return {
    next,
    stop() {
      controller.abort();
      clearTimeout(timer);
    },
  };
}

export function schedules() {
  const body = h("tbody");
  const nothing = h("p", { class: "empty", role: "status" }, "loading");
  const heads = ["Schedule", "When", "Job", "Next run", "Last run", "Actions"];
  const lines = table("Schedules", heads, body);
  const asking = repeated(async (signal) => {
    try {
      const answer = await get("v1/schedules", signal);
      nothing.hidden = answer.schedules.length > 0;
      lines.hidden = answer.schedules.length === 0;
      text(nothing, "There are no schedules. A schedule submits a job at the times you choose.");
      list(body, answer.schedules, (each) => each.name, (each) => line(each, () => asking.next()), show);
    } catch (error) {
      if (!signal.aborted && !body.firstChild) text(nothing, error.message);
    }
  }, REFRESH_MS);
  const element = h("div", { class: "view" }, h("h1", { class: "unseen" }, "Schedules"),
    panel("Schedules", { id: "schedules", tools: action("Add a schedule…", () => edit(null, asking.next), { kind: "primary" }) }, lines, nothing));
  return { element, stop: asking.stop };
}

const next = ({ next_at: at, paused }) => (paused ? ["paused", ""] : at ? [moment(at), at > now() ? `in ${span(at - now())}` : "now"] : ["never", ""]);
const last = ({ last_at: at }) => (at ? [moment(at), `${span(now() - at)} ago`] : ["not yet", ""]);

/** A cell of two lines. */
const twoLines = (cell, kind = "") => cell.append(h("div", { class: `words ${kind}` }), h("small", { class: "words" }));
function setLines(cell, [first, second]) {
  text(cell.firstChild, first);
  text(cell.lastChild, second);
}

function line(schedule, refresh) {
  const element = row({ name: "head", when: "", job: "", next: "time", last: "time", actions: "" });
  const cells = element.named;
  cells.name.append(h("a", { href: `#/schedules/${segment(schedule.name)}`, class: "words" }, schedule.name));
  for (const cell of [cells.job, cells.next, cells.last]) twoLines(cell);
  twoLines(cells.when, "mono");
  const [runNow, pause, change] = buttons(() => element.schedule, refresh);
  element.pause = pause;
  cells.actions.append(h("div", { class: "buttons" }, runNow, pause, change));
  return element;
}

function show(element, schedule) {
  element.schedule = schedule;
  const cells = element.named;
  setLines(cells.when, [schedule.cron, schedule.timezone ?? "UTC"]);
  setLines(cells.job, [schedule.job.type, `in ${schedule.job.queue ?? "default"}`]);
  setLines(cells.next, next(schedule));
  setLines(cells.last, last(schedule));
  text(element.pause, pauseLabel(schedule));
}

const pauseLabel = ({ paused }) => (paused ? "Resume" : "Pause");

/** What can be done with a schedule. */
function buttons(schedule, refresh, gone = refresh) {
  return [
    action("Run now", async () => {
      const { name, job } = schedule();
      const { jobs: [answer] } = await post("v1/jobs", { ...job, id: runId(name) });
      await refresh();
      if (answer.status !== "created") throw new Error(`not submitted: ${answer.status}${answer.existing ? ` of ${answer.existing}` : ""}`);
      return `${name} runs now, as job ${answer.id}`;
    }, { needs: "worker", title: "Submits its job once, and leaves the schedule as it is" }),
    action("Pause", async () => {
      const { name, paused } = schedule();
      await post(`v1/schedules/${segment(name)}/${paused ? "resume" : "pause"}`);
      await refresh();
      return paused ? `${name} is resumed` : `${name} is paused`;
    }, { title: "A paused schedule submits no jobs. Runs that fall into the pause are skipped." }),
    action("Change…", () => edit(schedule(), refresh)),
    action("Delete…", async () => {
      const { name } = schedule();
      const sure = await confirm({ title: `Delete ${name}?`, detail: "It submits no more jobs. Jobs that it has submitted are kept.", action: "Delete" });
      if (!sure) return null;
      await remove(`v1/schedules/${segment(name)}`);
      await gone();
      return `${name} is deleted`;
    }, { kind: "danger" }),
  ];
}

/** What begins the ids of a schedule's jobs: those of its slots, which only the broker makes, and those of runs by hand. */
const prefixes = (name) => [`schedule:${name}@`, `run-of-schedule:${name}@`];
const runId = (name) => prefixes(name)[1] + new Date(now()).toISOString();

/** One schedule, and its runs. */
export function schedule(name) {
  const about = facts();
  about.element.classList.add("roomy");
  const state = h("p", { class: "empty", role: "status" }, "loading");
  const payload = h("pre", { tabindex: "0" });
  const body = h("tbody");
  const none = h("p", { class: "empty", role: "status" }, "loading");
  let shown = null;
  const again = () => Promise.all([asking.next(), runs.next()]);
  const actions = buttons(() => shown, again, () => { location.hash = "#/schedules"; });
  const tools = h("div", { class: "buttons" }, actions);
  const facets = panel("Schedule", { id: "about" }, about.element, payload);
  const lines = table("Runs, newest first", ["Slot", "State", "Job", ["Attempt", "number"], "Last error"], body);
  const past = panel("Runs", { id: "runs", note: "newest first, as far as their jobs are kept" }, lines, none);
  const parts = [tools, facets, past];
  for (const each of parts) each.hidden = true;
  const asking = repeated(async (signal) => {
    try {
      const first = !shown;
      shown = await get(`v1/schedules/${segment(name)}`, signal);
      state.hidden = true;
      for (const each of parts) each.hidden = false;
      draw();
      if (first) runs.next();
    } catch (error) {
      if (signal.aborted) return;
      state.hidden = Boolean(shown) && error.status !== 404;
      text(state, error.status === 404 || error.code === "invalid_field" ? `There is no schedule ${name}.` : error.message);
    }
  }, REFRESH_MS);
  const runs = repeated(async (signal) => {
    if (!shown) return;
    const [slots, runsByHand] = prefixes(name);
    try {
      // It finds both: one ends with the other.
      const page = await get(`v1/dashboard/jobs${query({ search: slots, queue: shown.job.queue ?? "default", type: shown.job.type, limit: RUNS })}`, signal);
      const found = page.jobs.filter((job) => job.id.startsWith(slots) || job.id.startsWith(runsByHand));
      none.hidden = found.length > 0;
      lines.hidden = found.length === 0;
      text(none, "It has not run yet, or the jobs of its runs are no longer kept.");
      list(body, found, (job) => job.id, run, showRun);
    } catch (error) {
      if (!signal.aborted && !body.firstChild) text(none, error.message);
    }
  }, RUNS_REFRESH_MS);
  const draw = () => {
    text(actions[1], pauseLabel(shown));
    about.set("When", h("span", { class: "mono" }, shown.cron));
    about.set("Time zone", shown.timezone ?? "UTC");
    about.set("Next run", next(shown).join(", ").replace(/, $/, ""));
    about.set("Last run", last(shown).join(", ").replace(/, $/, ""));
    about.set("Queue", h("a", { href: `#/queues/${segment(shown.job.queue ?? "default")}` }, shown.job.queue ?? "default"));
    about.set("Type", words(shown.job.type));
    about.set("Missed runs", missed(shown));
    about.set("Attempts", shown.job.max_attempts ?? null);
    about.set("Priority", shown.job.priority || null);
    about.set("Unique key", shown.job.unique_key ? words(shown.job.unique_key) : null);
    about.set("Group", shown.job.group ? words(shown.job.group) : null);
    payload.hidden = shown.job.payload === undefined || shown.job.payload === null;
    text(payload, pretty(shown.job.payload));
  };
  return {
    element: h("div", { class: "view" }, h("div", { class: "title" }, h("h1", { class: "words" }, name), tools), state, facets, past),
    stop() {
      asking.stop();
      runs.stop();
    },
  };
}

function missed({ missed: kind = "once" }) {
  if (typeof kind === "object") return `run the latest ${count(kind.all)}`;
  return Object.fromEntries(MISSED)[kind] ?? kind;
}

function run(job) {
  const element = row({ slot: "time", state: "", id: "", attempt: "number", error: "grow" });
  const cells = element.named;
  const slot = job.id.slice(job.id.lastIndexOf("@") + 1);
  const at = Date.parse(slot);
  fill(cells.slot, Number.isNaN(at) ? visible(slot) : moment(at), !job.id.startsWith("schedule:") && h("small", {}, " run manually"));
  cells.state.append(badge(job.state));
  cells.id.append(jobLink(job.id));
  cells.error.append(words(""));
  return element;
}

function showRun(element, job) {
  const cells = element.named;
  setBadge(cells.state.firstChild, job.state);
  text(cells.attempt, `${count(job.attempt)} of ${count(job.max_attempts)}`);
  text(cells.error.firstChild, visible(job.error));
}

function edit(schedule, refresh) {
  const job = schedule?.job ?? {};
  const kind = typeof schedule?.missed === "object" ? "all" : (schedule?.missed ?? "once");
  form({
    title: schedule ? `Change ${schedule.name}` : "Add a schedule",
    action: schedule ? "Change" : "Add",
    fields: [
      { name: "name", label: "Name", value: schedule?.name ?? "", required: true },
      { name: "cron", label: "When", value: schedule?.cron ?? "", required: true, suggestions: EXAMPLES, hint: "minute hour day month weekday, such as 30 7 * * mon-fri" },
      { name: "timezone", label: "Time zone", value: schedule?.timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone, suggestions: ["UTC", ...(Intl.supportedValuesOf?.("timeZone") ?? [])], hint: "Leave empty for UTC." },
      { name: "missed", label: "Missed runs", kind: "choice", options: MISSED, value: kind, hint: "What happens to runs that were due while no broker served." },
      { name: "type", label: "Job type", value: job.type ?? "", required: true },
      { name: "queue", label: "Queue", value: job.queue ?? "default", suggestions: queueNames(), required: true },
      { name: "payload", label: "Payload, any JSON", kind: "json", value: JSON.stringify(schedule ? (job.payload ?? null) : {}, null, 2) },
      { name: "priority", label: "Priority", kind: "number", value: job.priority ?? "", hint: "Higher priorities run first." },
      { name: "max_attempts", label: "Maximum attempts", kind: "number", value: job.max_attempts ?? "" },
      { name: "unique_key", label: "Unique key", value: job.unique_key ?? "", hint: "While a run with this key is unfinished, further runs are skipped." },
      { name: "group", label: "Group", value: job.group ?? "", hint: "Jobs of a group run one at a time, in order." },
    ],
    submit: async (values) => {
      if (values.name !== schedule?.name && await exists(values.name)) {
        throw new Problem(409, { detail: `There is a schedule ${values.name} already: choose another name, or change that one.`, field: "name" });
      }
      // What the form does not show stays as it is.
      const wanted = { ...job, queue: values.queue, type: values.type, payload: values.payload };
      for (const name of ["priority", "max_attempts"]) assign(wanted, name, values[name] === "" ? undefined : Number(values[name]));
      for (const name of ["unique_key", "group"]) assign(wanted, name, values[name] || undefined);
      const body = { cron: values.cron, job: wanted, missed: values.missed === "all" ? { all: schedule?.missed?.all ?? 1000 } : values.missed };
      if (values.timezone) body.timezone = values.timezone;
      await put(`v1/schedules/${segment(values.name)}`, body);
      await refresh();
      say(`${values.name} is set`);
    },
  });
  return null;
}

async function exists(name) {
  try {
    await get(`v1/schedules/${segment(name)}`);
    return true;
  } catch (problem) {
    if (problem.status === 404) return false;
    throw problem;
  }
}

function assign(object, name, value) {
  if (value === undefined) delete object[name];
  else object[name] = value;
}
