// One connection to the broker's stream of events: opened, read, and opened again when it breaks. It is read with fetch
// because EventSource sends no headers. The worker that all tabs share runs it, or the page itself where there is none.

import { failure, options } from "./api.js";

/** Not relative to the page: a worker has another address. */
const STREAM = new URL("../v1/dashboard/stream", import.meta.url);
/** The server sends at least one event per second; silence for this long is a broken connection. */
const SILENCE_MS = 6000;
const RETRY_MS = [300, 1000, 2000, 4000];

/**
 * `tell({event, data})` for each event, its data as text; `tell({state, reason, status})` when the connection is `lost`, which is
 * tried again, or `refused`, which is not.
 */
export function connection(tell) {
  let controller = null;
  let attempt = 0;
  let timer = 0;
  let silence = 0;

  function close() {
    clearTimeout(timer);
    clearTimeout(silence);
    controller?.abort();
    controller = null;
  }

  async function connect() {
    close();
    const mine = (controller = new AbortController());
    heard(mine);
    try {
      const answer = await fetch(STREAM, options("GET", { Accept: "text/event-stream" }, mine.signal));
      if (!answer.ok) throw await failure(answer);
      await read(answer.body.getReader(), mine);
      throw new Error("the broker closed the connection");
    } catch (error) {
      if (mine === controller) failed(error);
    }
  }

  /** Restarts the watch for silence. */
  function heard(mine) {
    clearTimeout(silence);
    silence = setTimeout(() => mine === controller && mine.abort(), SILENCE_MS);
  }

  function failed(error) {
    close();
    if (error.status === 401 || error.status === 403) {
      tell({ state: "refused", reason: error.message, status: error.status });
      return;
    }
    const reason = error.name === "AbortError" ? "the broker does not answer" : (error.status ? error.message : "cannot reach this broker");
    tell({ state: "lost", reason });
    timer = setTimeout(connect, RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)] * (0.8 + 0.4 * Math.random()));
    attempt += 1;
  }

  async function read(reader, mine) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || mine !== controller) return;
      heard(mine);
      attempt = 0;
      rest += decoder.decode(value, { stream: true });
      const events = rest.split("\n\n");
      rest = events.pop();
      for (const event of events) take(event);
    }
  }

  function take(event) {
    let name = "";
    let data = "";
    for (const line of event.split("\n")) {
      if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) data += line.slice(5);
    }
    if (data) tell({ event: name, data });
  }

  return {
    /** Tries at once, whatever the wait was. */
    open() {
      attempt = 0;
      connect();
    },
    close,
  };
}
