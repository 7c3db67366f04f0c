// The last hour of a queue, or of all of them: fetched once, then only what is new. Never longer than an hour.

import { get, query } from "./api.js";

const POINTS_MAX = 720;
const RANGES = { "5 min": 300000, "15 min": 900000, "1 h": 3600000 };
let range = localStorage.getItem("tenure.range") ?? "15 min";
if (!RANGES[range]) range = "15 min";

export const ranges = Object.keys(RANGES);
export const chosenRange = () => range;
export function chooseRange(name) {
  range = name;
  localStorage.setItem("tenure.range", name);
}

/** Keeps `show(data)` up to date with a series until `stop()` is called. `queue` null: all queues together. */
export function feed(queue, show) {
  let data = null;
  let timer = 0;
  const controller = new AbortController();

  const cut = () => {
    const length = Math.min(data.length, Math.max(2, Math.round(RANGES[range] / data.step_ms)));
    const columns = {};
    for (const [name, column] of Object.entries(data.columns)) columns[name] = column.slice(-length);
    return { ...data, length, columns };
  };

  const next = async () => {
    let wait = 5000;
    try {
      const more = await get(`v1/dashboard/series${query({ queue, after: data?.until_at })}`, controller.signal);
      data = join(data, more);
      wait = Math.max(1000, more.step_ms);
      show(cut());
    } catch (error) {
      if (controller.signal.aborted) return;
      // The stream says what is wrong; this only tries again.
      wait = 2000;
    }
    if (!controller.signal.aborted) timer = setTimeout(next, document.hidden ? 30000 : wait);
  };
  next();

  return {
    redraw: () => data && show(cut()),
    stop() {
      controller.abort();
      clearTimeout(timer);
    },
  };
}

/** What was there, then what is new; a time without news, such as a failover, stays a hole. */
function join(old, more) {
  if (!old || old.step_ms !== more.step_ms) return more;
  const missing = Math.round((more.until_at - old.until_at) / more.step_ms) - more.length;
  if (missing < 0 || missing >= POINTS_MAX) return more;
  const hole = new Array(missing).fill(null);
  const columns = {};
  for (const [name, column] of Object.entries(more.columns)) columns[name] = [...(old.columns[name] ?? []), ...hole, ...column].slice(-POINTS_MAX);
  return { ...more, columns, length: Math.min(POINTS_MAX, old.length + missing + more.length) };
}
