// This tab's way to the stream: through the worker that all tabs share, or straight to the broker where a browser has no such
// workers, or its worker says nothing.

import { connection } from "./stream.js";

/** The worker passes on an event per second, and tells of every try: silence for this long means that it is no more. */
const SILENCE_MS = 20000;
const HERE_MS = 10000;

/** The same as `connection` of stream.js. */
export function source(tell) {
  if (typeof SharedWorker !== "function") return connection(tell);
  let own = null;
  let port = null;
  let silence = 0;
  let here = 0;
  let isOpen = false;

  const alone = () => {
    if (own) return;
    clearTimeout(silence);
    clearInterval(here);
    port?.postMessage("away");
    own = connection(tell);
    if (isOpen) own.open();
  };
  const watch = () => {
    clearTimeout(silence);
    silence = setTimeout(alone, SILENCE_MS);
  };
  try {
    const worker = new SharedWorker(new URL("worker.js", import.meta.url), { type: "module", name: "tenure" });
    worker.addEventListener("error", alone);
    port = worker.port;
    port.addEventListener("message", ({ data }) => {
      if (own || !isOpen) return;
      if (data.state === "refused") clearTimeout(silence);
      else watch();
      tell(data);
    });
    port.start();
  } catch {
    alone();
  }
  return {
    open(renewed = false) {
      isOpen = true;
      if (own) {
        own.open();
        return;
      }
      watch();
      clearInterval(here);
      here = setInterval(() => port.postMessage("here"), HERE_MS);
      port.postMessage(renewed ? "again" : "open");
    },
    close() {
      isOpen = false;
      clearTimeout(silence);
      clearInterval(here);
      if (own) own.close();
      else port.postMessage("away");
    },
  };
}
