// What is stored, as it is stored: one commit of the log, one object. For admins.

import { get, query } from "../api.js";
import { h, list, panel, row, table, text } from "../dom.js";
import { bytes, count, duration, pretty } from "../format.js";
import { facts, words } from "../parts.js";

export function raw(parameters) {
  const controller = new AbortController();
  const element = h("div", { class: "view" }, h("h1", { class: "unseen" }, "Raw state"),
    h("div", { class: "columns" }, commit(parameters.get("index"), controller.signal), h("div", { class: "stack" }, parameters.get("key") && object(parameters.get("key"), controller.signal), objects(parameters.get("after"), controller.signal))));
  return { element, stop: () => controller.abort() };
}

/** Shows what `path` answers, or why there is nothing to show. */
function loaded(path, signal, show) {
  const state = h("p", { class: "empty", role: "status" }, "loading");
  get(path, signal).then((found) => {
    state.hidden = true;
    show(found);
  }, (error) => {
    if (!signal.aborted) text(state, error.message);
  });
  return state;
}

function commit(wanted, signal) {
  const about = facts();
  const content = h("pre", { tabindex: "0", hidden: true });
  const index = h("input", { id: "raw-index", type: "number", min: "1", value: wanted ?? "", placeholder: "the last one" });
  const before = h("a", { class: "button", hidden: true }, "Before");
  const after = h("a", { class: "button", hidden: true }, "After");
  const go = (event) => {
    event.preventDefault();
    location.hash = `#/raw${query({ index: index.value })}`;
  };
  const chosen = h("form", { class: "filters", onsubmit: go }, h("label", { for: "raw-index" }, "Log index", index), h("button", { class: "primary" }, "Show"), before, after);
  const state = loaded(`v1/dashboard/commit${query({ index: wanted })}`, signal, (found) => {
    about.set("Log index", count(found.index));
    about.set("Kind", found.kind);
    about.set("Term", `${found.term}, incarnation ${found.incarnation}`);
    about.set("Records", found.kind === "commit" ? `${count(found.count)}, the first is number ${count(found.position)}` : null);
    about.set("Size", bytes(found.bytes));
    about.set("Stored in", words(found.offset ? `${found.location} at offset ${found.offset}` : found.location));
    content.hidden = found.lines.length === 0;
    text(content, found.lines.map(line).join("\n") + (found.truncated ? "\n… there is more of it: see tenure log show" : ""));
    before.hidden = found.index <= 1;
    before.href = `#/raw${query({ index: found.index - 1 })}`;
    after.hidden = !wanted;
    after.href = `#/raw${query({ index: found.index + 1 })}`;
  });
  return panel("Commit", { id: "commit", note: "as it is stored" }, chosen, state, about.element, content);
}

function object(key, signal) {
  const about = facts();
  const content = h("pre", { tabindex: "0", hidden: true });
  const state = loaded(`v1/dashboard/object${query({ key })}`, signal, (found) => {
    about.set("Key", words(found.key));
    about.set("Size", bytes(found.bytes));
    about.set("Written", found.age_ms === null ? null : `${duration(found.age_ms)} ago, by the store's clock`);
    content.hidden = false;
    text(content, found.value.split("\n").map(line).join("\n") + (found.truncated ? "\n… there is more of it" : ""));
  });
  return panel("Object", { id: "object", note: "as it is stored" }, state, about.element, content);
}

function objects(after, signal) {
  const body = h("tbody");
  const more = h("a", { class: "button", hidden: true }, "More");
  const keys = table("Objects of this namespace", ["Key"], body);
  keys.hidden = true;
  const state = loaded(`v1/dashboard/objects${query({ after })}`, signal, (found) => {
    keys.hidden = false;
    list(body, found.keys, (each) => each, (each) => {
      const element = row({ key: "head" });
      element.named.key.append(h("a", { class: "mono words", href: `#/raw${query({ key: each })}` }, each));
      return element;
    }, () => {});
    more.hidden = !found.next;
    more.href = `#/raw${query({ after: found.next })}`;
  });
  return panel("Objects", { id: "objects", note: "of this namespace" }, state, keys, h("div", { class: "buttons pages" }, more));
}

/** A line of JSON so that it can be read; any other as it is. */
function line(written) {
  try {
    return pretty(JSON.parse(written));
  } catch {
    return written;
  }
}
