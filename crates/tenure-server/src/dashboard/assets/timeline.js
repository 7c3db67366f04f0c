// Past terms as a strip: who led, how long, why it ended, and where nobody did. Widths are compressed, since a
// gap of two seconds would be invisible next to a term of three days; the table below it has the exact times.

import { attribute, h, list, row, table, text } from "./dom.js";
import { duration, moment, visible } from "./format.js";
import { nodeColour, words } from "./parts.js";

/** Shorter than this is the hand-over itself. */
const GAP_MIN_MS = 1000;

/** Terms and gaps, oldest first. */
export function pieces(node, now) {
  const terms = (node.terms ?? []).map((term) => ({ ...term, key: `term-${term.term}` }));
  if (node.leader) terms.push({ ...node.leader, key: `term-${node.leader.term}`, until_at: null });
  const found = [];
  for (const term of terms) {
    const before = found.at(-1);
    if (before?.until_at && term.since_at - before.until_at >= GAP_MIN_MS) {
      found.push({ key: `gap-${term.term}`, gap: true, since_at: before.until_at, until_at: term.since_at });
    }
    const from = heardUntil(term, node);
    found.push({ ...term, heard_until_at: from });
    if (from) found.push({ key: `silent-${term.term}`, gap: true, silent: term.node, since_at: from, until_at: term.until_at });
  }
  const last = found.at(-1);
  if (!node.leader && last?.until_at && now - last.until_at >= GAP_MIN_MS) {
    found.push({ key: "gap-now", gap: true, since_at: last.until_at, until_at: null });
  }
  return found;
}

/**
 * When the leader of a term was heard of last, or a little before that: nobody is evicted who was heard of within its
 * time to live. Null if the term ended otherwise.
 */
function heardUntil(term, node) {
  if (!term.until_at || !term.reason?.includes("evicted")) return null;
  const sessions = node.nodes ?? [];
  const session = sessions.find((each) => each.node === term.node) ?? sessions.find((each) => each.leads);
  return session ? Math.max(term.since_at, term.until_at - session.ttl_ms) : null;
}

const lasted = (piece, now) => Math.max(0, (piece.until_at ?? now) - piece.since_at);

/** The strip. */
export function timeline() {
  const strip = h("ol", { class: "timeline", "aria-label": "Terms, oldest first" });
  return {
    element: strip,
    update(node, now) {
      list(strip, pieces(node, now).slice(-24), (piece) => piece.key, piece, (element, each) => {
        const shown = each.heard_until_at ? { ...each, until_at: each.heard_until_at } : each;
        const time = duration(lasted(shown, now));
        element.style.setProperty("flex-grow", String(Math.max(1, lasted(shown, now)) ** 0.35));
        attribute(element, "data-current", each.until_at || each.gap ? null : "");
        const what = each.silent ? `not heard from ${each.silent}` : each.gap ? "no leader" : `term ${each.term}, ${each.node}`;
        attribute(element, "title", `${what}: ${each.silent ? "at least " : ""}${time}${each.reason ? `, ended: ${visible(each.reason)}` : ""}`);
        text(element.firstChild, each.gap ? "" : each.node);
        text(element.lastChild, time);
      });
    },
  };

  function piece(each) {
    const kind = each.silent ? "gap silent" : each.gap ? "gap" : `node-${nodeColour(each.node)}`;
    return h("li", { class: kind }, h("b"), h("small"));
  }
}

/** The table. */
export function terms() {
  const body = h("tbody");
  const element = table("Terms, newest first", [["Term", "number"], "Leader", "From", "Lasted", "Reason"], body);
  return {
    element,
    update(node, now) {
      list(body, pieces(node, now).reverse(), (piece) => piece.key, create, (line, each) => {
        const cells = line.named;
        text(cells.lasted, `${each.silent ? "at least " : ""}${duration(lasted(each, now))}`);
        text(cells.reason.firstChild, each.silent ? "not heard from until it was evicted" : each.gap ? "" : each.until_at ? visible(each.reason) : "leads now");
      });
    },
  };

  function create(each) {
    const line = row({ term: "number", node: "", from: "time", lasted: "", reason: "" });
    const cells = line.named;
    if (each.gap) line.className = "gap";
    text(cells.term, each.gap ? "–" : each.term);
    cells.node.append(each.silent ? words(each.silent) : each.gap ? "nobody" : words(each.node));
    text(cells.from, moment(each.since_at));
    cells.reason.append(h("bdi"));
    return line;
  }
}
