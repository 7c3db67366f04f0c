// Calls to the node that served this page. The token travels in a header and lives as long as the tab.

const KEY = "tenure.token";
let ask = null;

export const token = () => sessionStorage.getItem(KEY) ?? "";

export function setToken(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

/** Who asks for a token when a call is refused for want of one. */
export function onUnauthorized(handler) {
  ask = handler;
}

/** What the server said no with. */
export class Problem extends Error {
  constructor(status, body) {
    super(body?.detail || body?.title || `the broker answered ${status}`);
    this.status = status;
    this.code = body?.code;
    this.hint = body?.hint;
    this.field = body?.field;
  }
}

export function headers(more = {}) {
  const all = { ...more };
  if (token()) all.Authorization = `Bearer ${token()}`;
  return all;
}

/** One call; the answer's JSON, or a Problem. Paths are relative, so that the page may live below a prefix. */
export async function call(method, path, body, signal) {
  const options = { method, headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }), signal };
  options.cache = "no-store";
  options.credentials = "omit";
  options.redirect = "error";
  if (body !== undefined) options.body = JSON.stringify(body);
  const answer = await fetch(path, options);
  if (answer.ok) return answer.status === 204 || answer.status === 202 ? null : answer.json();
  const problem = await failure(answer);
  if (answer.status === 401 && ask) ask(problem);
  throw problem;
}

export async function failure(answer) {
  let body = null;
  try {
    body = await answer.json();
  } catch {
    // A proxy in between may answer with anything.
  }
  return new Problem(answer.status, body);
}

export const get = (path, signal) => call("GET", path, undefined, signal);
export const post = (path, body = {}) => call("POST", path, body);
export const put = (path, body) => call("PUT", path, body);
export const remove = (path) => call("DELETE", path);

/** A name inside a path. */
export const segment = (name) => encodeURIComponent(name);

/** `?a=1&b=2` without what is empty. */
export function query(parameters) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") search.set(name, value);
  }
  const text = search.toString();
  return text ? `?${text}` : "";
}
