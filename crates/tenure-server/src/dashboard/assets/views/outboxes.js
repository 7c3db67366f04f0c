// Outboxes: what waits in the users' own databases to be handed over, and what could not be.

import { get } from "../api.js";
import { h, list, panel, row, table, text } from "../dom.js";
import { count, duration, span } from "../format.js";
import { badge, setBadge, words } from "../parts.js";

const REFRESH_MS = 5000;

export function outboxes() {
  const body = h("tbody");
  const dead = h("tbody");
  const nothing = h("p", { class: "empty", role: "status" }, "loading");
  const heads = ["Outbox", "Database", ["Waiting", "number"], ["Oldest", "number"], ["Failing", "number"], ["Dead", "number"], ["Lag", "number"], "Relayed by", "State"];
  const deadHeads = ["Row", "Outbox", "Type", "Group", ["Attempts", "number"], "Error", "Died"];
  const deadPanel = panel("Dead rows", { id: "dead-rows", note: "tenure outbox retry puts them back" }, table("Rows that could not be handed over", deadHeads, dead));
  deadPanel.hidden = true;
  const controller = new AbortController();
  let timer = 0;
  const refresh = async () => {
    clearTimeout(timer);
    try {
      const answer = await get("v1/dashboard/outboxes", controller.signal);
      nothing.hidden = answer.outboxes.length > 0;
      text(nothing, "This broker relays no outbox. Start it with: tenure serve --outbox URL");
      list(body, answer.outboxes, (each) => each.name, line, show);
      const rows = answer.outboxes.flatMap((each) => (each.tables?.dead_rows ?? []).map((row) => ({ outbox: each.name, ...row })));
      deadPanel.hidden = rows.length === 0;
      list(dead, rows, (each) => `${each.outbox}/${each.seq}`, deadLine, showDead);
    } catch (error) {
      if (controller.signal.aborted) return;
      nothing.hidden = false;
      text(nothing, error.message);
    }
    if (!controller.signal.aborted) timer = setTimeout(refresh, document.hidden ? 30000 : REFRESH_MS);
  };
  refresh();
  const element = h("div", { class: "view" }, h("h1", { class: "unseen" }, "Outboxes"),
    panel("Outboxes", { id: "outboxes" }, table("Outboxes", heads, body), nothing), deadPanel);
  return {
    element,
    stop() {
      controller.abort();
      clearTimeout(timer);
    },
  };
}

function line(outbox) {
  const element = row({ name: "head", database: "", waiting: "number", oldest: "number", failing: "number", dead: "number", lag: "number", relay: "", state: "" });
  element.named.name.append(words(outbox.name));
  element.named.database.append(words(outbox.database));
  element.named.relay.append(words(""));
  element.named.state.append(badge(""));
  return element;
}

function show(element, outbox) {
  const cells = element.named;
  const tables = outbox.tables;
  text(cells.waiting, tables ? count(tables.waiting) : "–");
  text(cells.oldest, duration(tables?.oldest_ms));
  text(cells.failing, tables ? count(tables.failing) : "–");
  text(cells.dead, tables ? count(tables.dead) : "–");
  text(cells.lag, duration(outbox.lag_ms));
  text(cells.relay.firstChild, outbox.relays_here ? "this broker" : tables?.holder ?? "nobody yet");
  const [word, label] = outbox.problem ? ["failed", outbox.problem] : tables?.dead ? ["dead", "rows are dead"] : tables?.failing ? ["behind", "rows fail"] : ["alive", "fine"];
  setBadge(cells.state.firstChild, word, label);
}

function deadLine(dead) {
  const element = row({ id: "head", outbox: "", type: "", group: "", attempts: "number", error: "", died: "time" });
  const cells = element.named;
  cells.id.append(words(dead.id, "mono"));
  cells.outbox.append(words(dead.outbox));
  cells.type.append(words(dead.type));
  cells.group.append(words(dead.group ?? "–"));
  cells.error.append(words(dead.error));
  return element;
}

function showDead(element, dead) {
  text(element.named.attempts, count(dead.attempts));
  text(element.named.died, `${span(dead.age_ms)} ago`);
}
