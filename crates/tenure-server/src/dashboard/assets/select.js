// Several jobs at once: ticked in a list, then retried, cancelled, moved or deleted. Each gets its own answer, and how many were refused,
// and why, is said.

import { post, remove, segment } from "./api.js";
import { action, confirm, form } from "./dialogs.js";
import { h, text } from "./dom.js";
import { plural } from "./format.js";
import { queueNames } from "./live.js";

const FINISHED = ["completed", "cancelled", "dead"];
/** Calls at the same time: a browser has six connections. */
const AT_ONCE = 4;

/** `all` and `box(job)` go into the table, `bar` beside it; `update(jobs)` says what the list shows. */
export function selection(refresh) {
  const boxes = new Map();
  const ticked = new Set();
  let shown = new Map();
  const chosen = (fits) => [...ticked].map((id) => shown.get(id)).filter((job) => job && fits(job));
  const all = h("input", { type: "checkbox", "aria-label": "Select all jobs on this page", onchange: () => {
    for (const id of shown.keys()) tick(id, all.checked);
    draw();
  } });
  const words = h("span", { role: "status" });
  const kinds = [
    kind("Retry", (job) => ["dead", "cancelled", "scheduled"].includes(job.state), "retried", retry),
    kind("Cancel", (job) => !FINISHED.includes(job.state), "cancelled", (jobs) => each(jobs, (id) => post(`v1/jobs/${id}/cancel`)),
      "Workers stop running jobs when they send their next heartbeat."),
    kind("Move", (job) => !["running", "completed"].includes(job.state), "moved", move),
    kind("Delete", (job) => FINISHED.includes(job.state), "deleted", (jobs) => each(jobs, (id) => remove(`v1/jobs/${id}`)),
      "This deletes their payloads and results too, and cannot be undone."),
  ];
  const clear = h("button", { type: "button", onclick: () => {
    for (const id of [...ticked]) tick(id, false);
    draw();
  } }, "Clear");
  const bar = h("div", { class: "selected needs-admin", hidden: true, role: "group", "aria-label": "Selected jobs" }, words, kinds.map((each) => each.button), clear);

  function kind(label, fits, done, run, detail) {
    const button = action(label, async () => {
      const jobs = chosen(fits);
      if (detail) {
        const sure = await confirm({ title: `${label} ${plural(jobs.length, "job")}?`, detail, action: `${label} ${plural(jobs.length, "job")}` });
        if (!sure) return null;
      }
      const problems = await run(jobs);
      if (problems === null) return null;
      for (const job of jobs) tick(job.id, false);
      await refresh();
      if (problems.length === 0) return `${plural(jobs.length, "job")} ${done}`;
      throw new Error(`${plural(jobs.length - problems.length, "job")} ${done}, ${problems.length} not: ${problems[0]}`);
    });
    return { label, fits, button };
  }

  function tick(id, on) {
    if (on) ticked.add(id);
    else ticked.delete(id);
    const box = boxes.get(id);
    if (box) box.checked = on;
  }

  function draw() {
    bar.hidden = ticked.size === 0;
    text(words, `${plural(ticked.size, "job")} selected`);
    all.checked = ticked.size > 0 && ticked.size === shown.size;
    all.indeterminate = ticked.size > 0 && !all.checked;
    for (const { label, fits, button } of kinds) {
      const number = chosen(fits).length;
      button.hidden = number === 0;
      text(button, `${label} ${number}`);
    }
  }

  return {
    all,
    bar,
    box(job) {
      const box = h("input", { type: "checkbox", "aria-label": `Select job ${job.id}`, onchange: () => {
        tick(job.id, box.checked);
        draw();
      } });
      boxes.set(job.id, box);
      return box;
    },
    /** What has left the list is no longer selected: nobody acts on what they cannot see. */
    update(jobs) {
      shown = new Map(jobs.map((job) => [job.id, job]));
      for (const id of [...ticked]) if (!shown.has(id)) ticked.delete(id);
      for (const id of [...boxes.keys()]) if (!shown.has(id)) boxes.delete(id);
      draw();
    },
  };
}

async function retry(jobs) {
  return refused(await post("v1/jobs/retry", { ids: jobs.map((job) => job.id) }), "retried");
}

/** Asks where to; none of it is done if the reader closes the form. */
function move(jobs) {
  return new Promise((resolve) => form({
    title: `Move ${plural(jobs.length, "job")} to another queue`,
    detail: "There each keeps its turn: by priority, and then by when it was submitted. Dead and cancelled jobs do not run until they are retried.",
    fields: [{ name: "queue", label: "Queue", suggestions: queueNames(), required: true }],
    action: `Move ${plural(jobs.length, "job")}`,
    submit: async ({ queue }) => resolve(refused(await post("v1/jobs/move", { ids: jobs.map((job) => job.id), queue }), "moved")),
    closed: () => resolve(null),
  }));
}

/** Why those were refused that were. */
function refused(answer, done) {
  const why = { not_found: "it is no longer there", state: "its state does not allow it", unique_key: "another job has its unique key" };
  return answer.jobs.filter((job) => job.status !== done).map((job) => why[job.status] ?? job.status);
}

/** One call for each job, a few at a time; what was refused. */
async function each(jobs, call) {
  const problems = [];
  const waiting = [...jobs];
  const work = async () => {
    for (let job = waiting.shift(); job; job = waiting.shift()) {
      try {
        await call(segment(job.id));
      } catch (error) {
        problems.push(error.message);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return problems;
}
