// Questions to the reader, and short news. All of them are real dialogs: Escape closes, focus comes back.

import { setToken, token } from "./api.js";
import { h, text } from "./dom.js";

let open = null;

function show(content, kind = "") {
  open?.close();
  const dialog = h("dialog", { class: kind, "aria-labelledby": "dialog-title" }, content);
  document.body.append(dialog);
  dialog.addEventListener("close", () => {
    if (open === dialog) open = null;
    dialog.remove();
  });
  open = dialog;
  dialog.showModal();
  return dialog;
}

/** Asks before something that cannot be taken back. */
export function confirm({ title, detail, action, danger = true }) {
  return new Promise((resolve) => {
    const dialog = show(
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "dialog-title" }, title),
        h("p", {}, detail),
        h(
          "div",
          { class: "buttons" },
          h("button", { value: "no" }, "Go back"),
          h("button", { value: "yes", class: danger ? "danger" : "primary" }, action),
        ),
      ),
    );
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"));
  });
}

/**
 * A form. `fields`: {name, label, kind, value, hint, options, required}; `submit(values)` may throw a Problem, which
 * is shown beside the field that it names.
 */
export function form({ title, detail, fields, action, submit }) {
  const inputs = new Map();
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const lines = fields.map((field) => {
    const id = `field-${field.name}`;
    const input = control(field, id);
    const note = h("small", { id: `${id}-note` }, field.hint ?? "");
    inputs.set(field.name, { field, input, note });
    return h("div", { class: `field ${field.kind ?? ""}` }, h("label", { for: id }, field.label), input, note);
  });
  const button = h("button", { class: "primary", type: "submit" }, action);
  const dialog = show(
    h(
      "form",
      {
        onsubmit: async (event) => {
          event.preventDefault();
          button.disabled = true;
          problem.hidden = true;
          const values = {};
          for (const [name, { input }] of inputs) values[name] = input.value;
          try {
            await submit(values);
            dialog.close();
          } catch (error) {
            complain(error, inputs, problem);
          } finally {
            button.disabled = false;
          }
        },
      },
      h("h2", { id: "dialog-title" }, title),
      detail && h("p", {}, detail),
      h("div", { class: "fields" }, lines),
      problem,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close"), button),
    ),
    "wide",
  );
}

function control(field, id) {
  const common = { id, name: field.name, "aria-describedby": `${id}-note`, required: field.required, autocomplete: "off" };
  if (field.kind === "json") return h("textarea", { ...common, rows: 6, class: "mono", spellcheck: "false", value: field.value ?? "" });
  if (field.kind === "choice") {
    const select = h("select", common, field.options.map((option) => h("option", { value: option }, option)));
    select.value = field.value ?? field.options[0];
    return select;
  }
  const type = field.kind === "number" ? { type: "number" } : { type: "text" };
  return h("input", { ...common, ...type, list: field.list, value: field.value ?? "" });
}

function complain(error, inputs, problem) {
  for (const { input, note, field } of inputs.values()) {
    const wrong = error.field === field.name || error.field?.endsWith(`.${field.name}`);
    input.setAttribute("aria-invalid", String(Boolean(wrong)));
    text(note, wrong ? error.message : (field.hint ?? ""));
    if (wrong) input.focus();
  }
  problem.hidden = false;
  text(problem, error.hint ? `${error.message}. ${error.hint}` : error.message);
}

/** Asks for the access token. */
export function askToken(reason, done) {
  if (open?.classList.contains("token")) return;
  const input = h("input", { id: "field-token", type: "password", autocomplete: "off", value: token() });
  const dialog = show(
    h(
      "form",
      {
        method: "dialog",
        onsubmit: () => {
          setToken(input.value.trim());
          done();
        },
      },
      h("h2", { id: "dialog-title" }, "Access token"),
      h("p", {}, reason),
      h("div", { class: "fields" }, h("div", { class: "field" }, h("label", { for: "field-token" }, "Token"), input,
        h("small", {}, "Kept until you close this tab. Sent in a header, never in a URL."))),
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close"), h("button", { class: "primary" }, "Use token")),
    ),
    "token",
  );
  input.focus();
}

/** Short news, read out and gone after a while. */
export function say(message, kind = "good") {
  const toast = h("div", { class: "toast", "data-kind": kind }, message);
  const toasts = document.getElementById("toasts");
  toasts.append(toast);
  while (toasts.children.length > 4) toasts.firstChild.remove();
  setTimeout(() => toast.remove(), kind === "bad" ? 12000 : 5000);
}

/** Runs an action of a button: no second press meanwhile, and the outcome is said. */
export function action(label, run, { kind = "", needs = "admin", title } = {}) {
  const button = h("button", { type: "button", class: `${kind} needs-${needs}`, title }, label);
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const done = await run();
      if (done) say(done);
    } catch (error) {
      const hint = error.status === 403 ? "This token does not allow it. Use one with a wider scope." : error.hint;
      say(hint ? `${error.message}. ${hint}` : error.message, "bad");
    } finally {
      button.disabled = false;
    }
  });
  return button;
}

