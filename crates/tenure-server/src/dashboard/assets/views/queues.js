// Queues: how deep, how fast, how late; pause, resume and limits.

import { get, post, put, segment } from "../api.js";
import { action, confirm, form, say } from "../dialogs.js";
import { attribute, fill, h, list, panel, row, table, text } from "../dom.js";
import { count, duration, rate, short, span, written } from "../format.js";
import { now } from "../live.js";
import { badge, figure, ofLimit, percentilesHead, setBadge, setPercentiles } from "../parts.js";
import { plot, spark } from "../plot.js";
import { chooseRange, chosenRange, feed, ranges } from "../series.js";
import { welcome } from "./welcome.js";

const PLOTS = {
  depth: { title: "Depth by state", kind: "area", series: [["running", "running"], ["ready", "ready"], ["scheduled", "scheduled"], ["dead", "dead"]] },
  throughput: { title: "Jobs per second", scale: "rate", format: rate, series: [["submitted", "submitted"], ["completed", "completed"], ["failed", "failed"]] },
  pickup: { title: "Pick-up: from ready to claimed", scale: "time", format: duration, series: [["pickup_p50", "p50"], ["pickup_p95", "p95"], ["pickup_p99", "p99"]] },
  run: { title: "Run: from claimed to ended", scale: "time", format: duration, series: [["run_p50", "p50"], ["run_p95", "p95"], ["run_p99", "p99"]] },
  oldest: { title: "Oldest ready job", scale: "time", format: duration, series: [["oldest_ready_ms", "waits"]] },
  failures: { title: "Failed attempts per second", scale: "rate", format: rate, series: [["failed", "failed"], ["died", "dead"]] },
};

/** Plots of one queue, or of all; `names` says which. */
export function plots(queue, names) {
  const made = names.map((name) => {
    const { series, ...rest } = PLOTS[name];
    return plot({ ...rest, series: series.map(([key, label]) => ({ key, label, colour: `c-${label}` })) });
  });
  const source = feed(queue, (data) => made.forEach((each) => each.update(data)));
  return { element: h("div", { class: "plots" }, made.map((each) => each.element)), ...source };
}

export function rangeChoice(charts) {
  const buttons = ranges.map((name) =>
    h("button", {
      type: "button", "aria-pressed": String(name === chosenRange()),
      onclick: (event) => {
        chooseRange(name);
        for (const other of event.target.parentNode.children) other.setAttribute("aria-pressed", String(other === event.target));
        charts.redraw();
      },
    }, name));
  return h("div", { class: "choice", role: "group", "aria-label": "Time shown" }, buttons);
}

/** All queues, one line each. */
export function queueTable() {
  const body = h("tbody");
  const heads = ["Queue", "State", ["Last hour", "wide-only"], ["Ready", "number"], ["Running", "number"], ["Scheduled", "number"], ["Dead", "number"],
    ["Oldest ready", "number"], ["In", "number wide-only"], ["Out", "number wide-only"], percentilesHead("Pick-up"), percentilesHead("Run")];
  const nothing = h("div", { hidden: true });
  const lines = table("Queues", heads, body);
  const element = h("div", {}, lines, nothing);
  let sparks = {};
  let timer = 0;
  const controller = new AbortController();
  const refresh = async () => {
    try {
      if (!document.hidden) sparks = (await get("v1/dashboard/sparks", controller.signal)).queues;
    } catch {
      // Only decoration: the stream says what is wrong.
    }
    if (!controller.signal.aborted) timer = setTimeout(refresh, 15000);
  };
  refresh();
  return {
    element,
    stop() {
      controller.abort();
      clearTimeout(timer);
    },
    update(queues) {
      const isEmpty = queues.queues.length === 0;
      if (isEmpty && !nothing.firstChild) nothing.append(welcome());
      nothing.hidden = !isEmpty;
      lines.hidden = isEmpty;
      const levels = new Map((queues.stuck ?? []).map((each) => [each.queue, each]));
      list(body, queues.queues, (each) => each.name, line, (element, each) => show(element, each, levels.get(each.name), sparks[each.name]));
    },
  };
}

function line(queue) {
  const element = row({ name: "head", state: "", spark: "wide-only", ready: "number", running: "number", scheduled: "number", dead: "number", oldest: "number",
    submitted: "number wide-only", completed: "number wide-only", pickup: "number wide-only", run: "number wide-only" });
  const cells = element.named;
  cells.name.append(h("a", { href: `#/queues/${segment(queue.name)}`, class: "words" }, queue.name));
  cells.dead.append(h("a", { href: `#/jobs?state=dead&queue=${segment(queue.name)}` }));
  cells.state.append(badge("open"));
  return element;
}

function show(element, queue, stuck, values) {
  const cells = element.named;
  text(cells.ready, count(queue.counts.ready));
  text(cells.running, ofLimit(queue.counts.running, queue.options.concurrency));
  text(cells.scheduled, count(queue.counts.scheduled));
  text(cells.dead.firstChild, count(queue.counts.dead));
  attribute(cells.dead, "data-level", queue.counts.dead ? "warn" : null);
  text(cells.oldest, queue.oldest_ready_at ? duration(Math.max(0, now() - queue.oldest_ready_at)) : "–");
  attribute(cells.oldest, "data-level", stuck ? stuck.level : null);
  text(cells.submitted, rate(queue.rates.submitted));
  text(cells.completed, rate(queue.rates.completed));
  setPercentiles(cells.pickup, queue.pickup);
  setPercentiles(cells.run, queue.run);
  const word = queue.paused ? "paused" : stuck ? "behind" : "open";
  setBadge(cells.state.firstChild, word);
  attribute(cells.state.firstChild, "title", stuck?.detail);
  if (values && element.values !== values) {
    element.values = values;
    fill(cells.spark, spark(values));
  }
}

export function queues() {
  const charts = plots(null, ["depth", "throughput", "pickup", "run", "oldest", "failures"]);
  const queueList = queueTable();
  const element = h("div", { class: "view" }, h("h1", { class: "unseen" }, "Queues"),
    panel("Queues", { id: "queues" }, queueList.element),
    panel("All queues together", { id: "flow", tools: rangeChoice(charts) }, charts.element));
  return {
    element,
    stop() {
      charts.stop();
      queueList.stop();
    },
    update: (live) => live.queues && queueList.update(live.queues),
  };
}

/** One queue. */
export function queue(name) {
  const charts = plots(name, ["depth", "throughput", "pickup", "run", "oldest", "failures"]);
  const figures = { ready: figure("Ready"), running: figure("Running"), scheduled: figure("Scheduled"), dead: figure("Dead"), oldest: figure("Oldest ready"), rates: figure("Completed"), pickup: figure("Pick-up p95"), run: figure("Run p95") };
  const state = badge("open");
  const detail = h("p", { class: "note", hidden: true });
  let shown = null;
  const pause = action("Pause", () => toggle(name, shown));
  const limits = action("Limits…", () => setLimits(name, shown));
  const retry = action("Retry dead jobs", () => retryDead({ queue: name }, shown?.counts.dead), { needs: "admin" });
  const element = h("div", { class: "view" },
    h("div", { class: "title" }, h("h1", { class: "words" }, name), state,
      h("div", { class: "buttons" }, pause, limits, retry, h("a", { class: "button", href: `#/jobs?queue=${segment(name)}` }, "Show jobs"))),
    detail,
    h("div", { class: "figures" }, Object.values(figures).map((each) => each.element)),
    panel("Over time", { id: "flow", tools: rangeChoice(charts) }, charts.element));
  return {
    element,
    stop: charts.stop,
    update(live) {
      shown = live.queues?.queues.find((each) => each.name === name) ?? null;
      if (!shown) return missing(live, detail, name);
      const stuck = live.queues.stuck?.find((each) => each.queue === name);
      detail.hidden = !stuck;
      text(detail, stuck ? stuck.detail : "");
      setBadge(state, shown.paused ? "paused" : stuck ? "behind" : "open");
      text(pause, shown.paused ? "Resume" : "Pause");
      const { counts, rates, options } = shown;
      figures.ready.set(count(counts.ready), counts.blocked ? `${count(counts.blocked)} wait in a group` : "");
      figures.running.set(ofLimit(counts.running, options.concurrency), options.concurrency ? "at once" : "no limit");
      figures.scheduled.set(count(counts.scheduled));
      figures.dead.set(count(counts.dead), "", counts.dead ? "warn" : null);
      figures.oldest.set(shown.oldest_ready_at ? span(now() - shown.oldest_ready_at) : "–", "", stuck?.level);
      figures.rates.set(rate(rates.completed), `submitted ${rate(rates.submitted)} · failed ${rate(rates.failed)}`);
      figures.pickup.set(duration(shown.pickup?.p95_ms), "last minute");
      figures.run.set(duration(shown.run?.p95_ms), "last minute");
    },
  };
}

function missing(live, detail, name) {
  if (!live.queues) return;
  detail.hidden = false;
  text(detail, `There is no queue ${name}. A queue appears with its first job.`);
}

async function toggle(name, queue) {
  if (!queue?.paused) {
    const sure = await confirm({ title: `Pause ${name}?`, detail: "Running jobs continue, and new jobs are accepted, but no job of this queue starts until you resume it.", action: "Pause", danger: false });
    if (!sure) return null;
  }
  await post(`v1/queues/${segment(name)}/${queue?.paused ? "resume" : "pause"}`);
  return queue?.paused ? `${name} is resumed` : `${name} is paused`;
}

async function setLimits(name, queue) {
  const { concurrency, rate: limit } = queue?.options ?? {};
  form({
    title: `Limits of ${name}`,
    detail: "An empty field means no limit.",
    action: "Set",
    fields: [
      { name: "concurrency", label: "Jobs at once", kind: "number", value: concurrency ?? "", hint: "How many may run at the same time, across all workers." },
      { name: "rate_jobs", label: "Jobs per period", kind: "number", value: limit?.jobs ?? "" },
      { name: "rate_period_ms", label: "Period", kind: "duration", value: written(limit?.period_ms ?? 1000), hint: "For example 1s, 5m or 1h." },
    ],
    submit: async (values) => {
      const options = {};
      if (values.concurrency) options.concurrency = Number(values.concurrency);
      if (values.rate_jobs) options.rate = { jobs: Number(values.rate_jobs), period_ms: Number(values.rate_period_ms) };
      await put(`v1/queues/${segment(name)}`, options);
      say(`limits of ${name} are set`);
    },
  });
  return null;
}

const BATCH = 1000;

/** Retries dead jobs in batches, so that no call is large; says how many it were. */
export async function retryDead(filter, number) {
  const sure = await confirm({ title: "Retry dead jobs?", detail: `${number === undefined ? "All dead jobs that match" : `${short(number)} dead ${number === 1 ? "job" : "jobs"}`} will run again, each from its first attempt.`, action: "Retry them", danger: false });
  if (!sure) return null;
  let done = 0;
  for (let batch = 0; batch < 200; batch += 1) {
    const { jobs } = await post("v1/jobs/retry", { state: "dead", ...filter, limit: BATCH });
    const retried = jobs.filter((each) => each.status === "retried" || each.status === "ok").length;
    done += retried;
    if (jobs.length < BATCH || retried === 0) break;
  }
  return `${count(done)} ${done === 1 ? "job runs" : "jobs run"} again`;
}
