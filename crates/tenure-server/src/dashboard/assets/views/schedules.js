// Schedules: what runs when, and when it ran last.

import { get, put, remove, segment } from "../api.js";
import { action, confirm, form, say } from "../dialogs.js";
import { h, list, panel, row, table, text } from "../dom.js";
import { moment, span } from "../format.js";
import { now } from "../live.js";
import { words } from "../parts.js";

const REFRESH_MS = 3000;

export function schedules() {
  const body = h("tbody");
  const nothing = h("p", { class: "empty", role: "status" }, "loading");
  const heads = ["Schedule", "When", "Zone", "Job", "Missed runs", "Next run", "Last run", "Actions"];
  const controller = new AbortController();
  let timer = 0;
  const refresh = async () => {
    clearTimeout(timer);
    try {
      const answer = await get("v1/schedules", controller.signal);
      nothing.hidden = answer.schedules.length > 0;
      text(nothing, "There are no schedules.");
      list(body, answer.schedules, (each) => each.name, (each) => line(each, refresh), show);
    } catch (error) {
      if (controller.signal.aborted) return;
      if (!body.firstChild) text(nothing, error.message);
    }
    if (!controller.signal.aborted) timer = setTimeout(refresh, document.hidden ? 30000 : REFRESH_MS);
  };
  refresh();
  const element = h("div", { class: "view" }, h("h1", { class: "unseen" }, "Schedules"),
    panel("Schedules", { id: "schedules", tools: action("Add a schedule…", () => edit(null, refresh), { kind: "primary" }) }, table("Schedules", heads, body), nothing));
  return {
    element,
    stop() {
      controller.abort();
      clearTimeout(timer);
    },
  };
}

function line(schedule, refresh) {
  const element = row({ name: "head", cron: "mono", zone: "", job: "", missed: "", next: "time", last: "time", actions: "" });
  const cells = element.named;
  cells.name.append(words(schedule.name));
  cells.job.append(words(""));
  cells.actions.append(h("div", { class: "buttons" },
    action("Change…", () => edit(element.schedule, refresh)),
    action("Delete…", async () => {
      const sure = await confirm({ title: `Delete ${schedule.name}?`, detail: "It submits no more jobs. Jobs that it has submitted are kept.", action: "Delete" });
      if (!sure) return null;
      await remove(`v1/schedules/${segment(schedule.name)}`);
      await refresh();
      return `${schedule.name} is deleted`;
    }, { kind: "danger" })));
  return element;
}

function show(element, schedule) {
  element.schedule = schedule;
  const cells = element.named;
  text(cells.cron, schedule.cron);
  text(cells.zone, schedule.timezone ?? "UTC");
  text(cells.job.firstChild, `${schedule.job.type} in ${schedule.job.queue ?? "default"}`);
  text(cells.missed, typeof schedule.missed === "string" ? schedule.missed : JSON.stringify(schedule.missed ?? null));
  const next = schedule.next_at;
  text(cells.next, next ? `${moment(next)} (${next > now() ? `in ${span(next - now())}` : "now"})` : "never");
  text(cells.last, schedule.last_at ? `${moment(schedule.last_at)} (${span(now() - schedule.last_at)} ago)` : "not yet");
}

function edit(schedule, refresh) {
  form({
    title: schedule ? `Change ${schedule.name}` : "Add a schedule",
    action: "Set",
    fields: [
      { name: "name", label: "Name", value: schedule?.name ?? "", required: true, hint: "Replaces an existing schedule with this name." },
      { name: "cron", label: "Cron expression", value: schedule?.cron ?? "", required: true, hint: "minute hour day month weekday, such as 30 7 * * mon-fri" },
      { name: "timezone", label: "Time zone", value: schedule?.timezone ?? "", hint: "For example Europe/Berlin. Leave empty for UTC." },
      { name: "job", label: "Job", kind: "json", value: JSON.stringify(schedule?.job ?? { queue: "default", type: "report", payload: {} }, null, 2), required: true },
    ],
    submit: async (values) => {
      const body = { cron: values.cron };
      try {
        body.job = JSON.parse(values.job);
      } catch (error) {
        throw Object.assign(new Error(`not valid JSON: ${error.message}`), { field: "job" });
      }
      if (values.timezone) body.timezone = values.timezone;
      if (schedule?.missed && schedule.name === values.name) body.missed = schedule.missed;
      await put(`v1/schedules/${segment(values.name)}`, body);
      await refresh();
      say(`${values.name} is set`);
    },
  });
  return null;
}
