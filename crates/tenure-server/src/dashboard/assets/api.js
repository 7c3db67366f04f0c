// Calls to the broker that served this page. Who the reader is, the browser says: by a cookie that no script can read, and
// that counts only beside the header below, which a page of another origin cannot send.

const PAGE = { "X-Tenure-Dashboard": "1" };
let ask = null;

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

/** What every call of the page has in common. */
export function options(method, more, signal) {
  return { method, headers: { ...PAGE, ...more }, signal, cache: "no-store", credentials: "same-origin", redirect: "error" };
}

/** One call; the answer's JSON, or a Problem. Paths are relative, so that the page may live below a prefix. */
export async function call(method, path, body, signal) {
  const asked = options(method, body === undefined ? {} : { "Content-Type": "application/json" }, signal);
  if (body !== undefined) asked.body = JSON.stringify(body);
  return answered(await fetch(path, asked), (problem) => ask?.(problem));
}

async function answered(answer, unauthorized) {
  if (answer.ok) return answer.status === 204 || answer.status === 202 ? null : answer.json();
  const problem = await failure(answer);
  if (answer.status === 401) unauthorized?.(problem);
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

/** Logs this browser in. The token goes there once, in a header; what the browser keeps is not the token. */
export async function login(token) {
  await answered(await fetch("v1/dashboard/login", options("POST", { Authorization: `Bearer ${token}` })));
}

/** Logs this browser out. */
export const logout = () => call("DELETE", "v1/dashboard/login");

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
