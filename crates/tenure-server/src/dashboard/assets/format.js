// Numbers and times for people. Everything is short, so that columns stay narrow.

const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 12,345 */
export const count = (value) => (value === null || value === undefined ? "–" : numbers.format(value));

/** 12.3k, for axes and tight places. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)}G`;
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e4) return `${trim(value / 1e3)}k`;
  return size >= 100 || Number.isInteger(value) ? numbers.format(value) : trim(value);
}

/** Events per second. */
export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0/s";
  if (value < 0.095) return `${trim(value * 60)}/min`;
  return `${value < 100 ? trim(value) : short(value)}/s`;
}

/** 340 ms, 12.4 s, 3 m 20 s, 4 h 05 m, 12 d 3 h */
export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  const ms = Math.max(0, milliseconds);
  if (ms < 1) return ms === 0 ? "0 ms" : "<1 ms";
  if (ms < 1000) return `${ms < 10 ? trim(ms) : Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 9.95 ? trim(seconds) : Math.floor(seconds)} s`;
  const whole = Math.floor(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} m ${pad(whole % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${pad(minutes % 60)} m`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const UNITS = { ms: 1, s: 1000, m: 60000, h: 3600000, d: 86400000 };

/** "90s", "1h 30m" or "2 d" → milliseconds; a number alone is seconds. Null if it is none of these. */
export function milliseconds(written) {
  const parts = [...String(written).trim().toLowerCase().matchAll(/(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*/gy)];
  if (parts.length === 0 || parts.map(([part]) => part).join("") !== String(written).trim().toLowerCase()) return null;
  if (parts.length > 1 && parts.some(([, , unit]) => !unit)) return null;
  return Math.round(parts.reduce((sum, [, number, unit = "s"]) => sum + Number(number) * UNITS[unit], 0));
}

/** The same backwards, as short as it can be written. */
export function written(value) {
  if (value === null || value === undefined || value === "") return "";
  const [unit, size] = Object.entries(UNITS).reverse().find(([, size]) => value % size === 0 && value >= size) ?? ["ms", 1];
  return `${value / size}${unit}`;
}

/** Whole seconds at least: for things that tick. */
export const span = (milliseconds) => duration(milliseconds < 1000 ? 0 : Math.floor(milliseconds / 1000) * 1000).replace("0 ms", "0 s");

/** 4.2 MB */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  let size = value;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : trim(size)} ${units[unit]}`;
}

let isUtc = localStorage.getItem("tenure.zone") === "utc";

/** Whether times are shown in UTC; otherwise they are shown in the reader's zone. */
export const showsUtc = () => isUtc;
export function showUtc(wanted) {
  isUtc = wanted;
  localStorage.setItem("tenure.zone", wanted ? "utc" : "local");
}

/** The name of the zone that times are shown in. */
export const zone = () => (isUtc ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone);

/** A date whose UTC fields are those of the zone that is shown. */
const shifted = (at) => new Date(isUtc ? at : at - new Date(at).getTimezoneOffset() * 60000);

/** 2026-11-15 13:04:09 */
export const moment = (at) => (at ? shifted(at).toISOString().slice(0, 19).replace("T", " ") : "–");

/** 13:04:09 */
export const clock = (at) => shifted(at).toISOString().slice(11, 19);

/** 13:04, for axes. */
export const minute = (at) => clock(at).slice(0, 5);

/** "1 job", "2 jobs" */
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** JSON on several lines. */
export function pretty(value) {
  return value === undefined ? "" : visible(JSON.stringify(value, null, 2));
}

/** Characters that would turn the text around them, or that cannot be seen, are spelled out. */
export function visible(value) {
  return String(value ?? "").replaceAll(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

const trim = (value) => value.toFixed(1).replace(/\.0$/, "");
const pad = (value) => String(value).padStart(2, "0");
