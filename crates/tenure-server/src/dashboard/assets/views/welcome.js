// What an empty broker shows: how its first job gets there.

import { h } from "../dom.js";
import { live } from "../live.js";

export function welcome() {
  const address = new URL(".", document.baseURI).href.replace(/\/$/, "");
  const token = live.needsToken ? ["-H \"Authorization: Bearer $TENURE_API_TOKEN\""] : [];
  const submit = [`curl ${address}/v1/jobs`, ...token, "-H 'Content-Type: application/json'", `-d '{"type": "hello", "payload": {"name": "world"}}'`].join(" \\\n  ");
  const work = `tenure worker --server ${address} --type hello -- cat`;
  return h("div", { class: "welcome" },
    h("p", {}, "There are no jobs yet. Submit the first one:"), h("pre", { tabindex: "0" }, submit),
    h("p", {}, "Then run a worker. It runs a program for each job, with the payload as its input:"), h("pre", { tabindex: "0" }, work));
}
