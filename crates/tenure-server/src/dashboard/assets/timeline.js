// Past terms as a strip: who led, how long, why it ended, and where nobody did. Widths are compressed, since a
// gap of two seconds would be invisible next to a term of three days; the table below it has the exact times. Those are of
// the clocks of several hosts, so how long something lasted is never their difference: one clock has measured it, or nobody.

import { attribute, h, list, row, table, text } from "./dom.js";
import { duration, moment, visible } from "./format.js";
import { nodeColour, words } from "./parts.js";

/** Shorter than this is the hand-over itself. */
const GAP_MIN_MS = 1000;

/** What a piece counts as in the strip if nobody knows how long it lasted. */
const UNKNOWN_MS = 60_000;

/** Terms and gaps, oldest first. */
export function pieces(node, now) {
  const terms = (node.terms ?? []).map((term) => ({ ...term, key: `term-${term.term}` }));
  const ledFor = node.cluster?.leader?.term === node.leader?.term ? node.cluster?.led_for_ms : null;
  if (node.leader) terms.push({ ...node.leader, key: `term-${node.leader.term}`, until_at: null, lasted_ms: ledFor });
  const found = [];
  for (const term of terms) {
    const before = found.at(-1);
    if (before?.vacant_ms >= GAP_MIN_MS) {
      found.push({ key: `gap-${term.term}`, gap: true, since_at: before.until_at, until_at: term.since_at, lasted_ms: before.vacant_ms });
    }
    const silent = silence(term, node);
    const heard = silent && term.lasted_ms != null ? Math.max(0, term.lasted_ms - silent) : term.lasted_ms;
    found.push({ ...term, heard_ms: heard });
    if (silent) found.push({ key: `silent-${term.term}`, gap: true, silent: term.node, since_at: Math.max(term.since_at, term.until_at - silent), until_at: term.until_at, lasted_ms: silent });
  }
  const nobody = node.leaderless_since_at;
  if (!node.leader && found.length && nobody && now - nobody >= GAP_MIN_MS) {
    found.push({ key: "gap-now", gap: true, since_at: nobody, until_at: null, lasted_ms: now - nobody });
  }
  return found;
}

/**
 * For how long the leader of a term was not heard of, at least: nobody is evicted who was heard of within its time to live.
 * Null if the term ended otherwise.
 */
function silence(term, node) {
  if (!term.until_at || !term.reason?.includes("evicted")) return null;
  const sessions = node.nodes ?? [];
  const session = sessions.find((each) => each.node === term.node) ?? sessions.find((each) => each.leads);
  return session ? session.ttl_ms : null;
}

const time = (milliseconds) => (milliseconds == null ? "–" : duration(milliseconds));

/** The strip. */
export function timeline() {
  const strip = h("ol", { class: "timeline", "aria-label": "Terms, oldest first" });
  return {
    element: strip,
    update(node, now) {
      list(strip, pieces(node, now).slice(-24), (piece) => piece.key, piece, (element, each) => {
        const lasted = each.gap ? each.lasted_ms : each.heard_ms;
        element.style.setProperty("flex-grow", String(Math.max(1, lasted ?? UNKNOWN_MS) ** 0.35));
        attribute(element, "data-current", each.until_at || each.gap ? null : "");
        const what = each.silent ? `not heard from ${each.silent}` : each.gap ? "no leader" : `term ${each.term}, ${each.node}`;
        attribute(element, "title", `${what}: ${each.silent ? "at least " : ""}${time(lasted)}${each.reason ? `, ended: ${visible(each.reason)}` : ""}`);
        text(element.firstChild, each.gap ? "" : each.node);
        text(element.lastChild, time(lasted));
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
        text(cells.lasted, `${each.silent ? "at least " : ""}${time(each.lasted_ms)}`);
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
