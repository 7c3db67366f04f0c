// Questions to the reader, and short news. All of them are real dialogs: Escape closes, focus comes back.

import { login, logout } from "./api.js";
import { h, text } from "./dom.js";
import { milliseconds } from "./format.js";

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
 * A form. `fields`: {name, label, kind, value, hint, options, suggestions, required}, kind: text, number, duration (in milliseconds), choice
 * (options: [value, label]) or json; `submit(values)` may throw a Problem, which
 * is shown beside the field that it names; `closed()` is called in any case.
 */
export function form({ title, detail, fields, action, submit, closed }) {
  const inputs = new Map();
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const lines = fields.map((field) => {
    const id = `field-${field.name}`;
    const input = control(field, id);
    const note = h("small", { id: `${id}-note` }, field.hint ?? "");
    inputs.set(field.name, { field, input: input.matches("input, select, textarea") ? input : input.firstChild, note });
    return h("div", { class: `field kind-${field.kind ?? "text"}` }, h("label", { for: id }, field.label), input, note);
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
            for (const { field } of inputs.values()) values[field.name] = understood(field, values[field.name]);
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
  if (closed) dialog.addEventListener("close", closed);
}

/** What a field means; a complaint beside it if that is nothing. */
function understood(field, value) {
  const wrong = (problem) => Object.assign(new Error(problem), { field: field.name });
  if (field.kind === "duration" && value.trim() !== "") {
    const found = milliseconds(value);
    if (found === null) throw wrong("not a duration, such as 30s, 5m or 1h 30m");
    return found;
  }
  if (field.kind === "json") {
    try {
      return value.trim() ? JSON.parse(value) : null;
    } catch (error) {
      throw wrong(`not valid JSON: ${error.message}`);
    }
  }
  return value;
}

function control(field, id) {
  const common = { id, name: field.name, "aria-describedby": `${id}-note`, required: field.required, autocomplete: "off" };
  if (field.kind === "json") return h("textarea", { ...common, rows: 6, class: "mono", spellcheck: "false", value: field.value ?? "" });
  if (field.kind === "choice") {
    const select = h("select", common, field.options.map((option) => h("option", { value: option[0] ?? option }, option[1] ?? option)));
    select.value = field.value ?? select.options[0].value;
    return select;
  }
  const type = field.kind === "number" ? { type: "number" } : { type: "text" };
  const input = h("input", { ...common, ...type, list: field.suggestions ? `${id}-list` : null, value: field.value ?? "" });
  if (!field.suggestions) return input;
  const known = field.suggestions.map((each) => (Array.isArray(each) ? h("option", { value: each[0] }, each[1]) : h("option", { value: each })));
  return h("div", { class: "suggested" }, input, h("datalist", { id: `${id}-list` }, known));
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

/** Asks for the access token, which logs the browser in: this tab, the others, and those to come. */
export function askToken(reason, done, wasAsked = false) {
  if (open?.classList.contains("token")) return;
  const input = h("input", { id: "field-token", type: "password", autocomplete: "off", "aria-describedby": "field-token-note" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const leave = async () => {
    await logout();
    dialog.close();
    done();
  };
  const dialog = show(
    h(
      "form",
      {
        onsubmit: async (event) => {
          event.preventDefault();
          problem.hidden = true;
          try {
            await login(input.value.trim());
            dialog.close();
            done();
          } catch (error) {
            problem.hidden = false;
            text(problem, error.message);
            input.focus();
          }
        },
      },
      h("h2", { id: "dialog-title" }, "Access token"),
      h("p", {}, reason),
      h("div", { class: "fields" }, h("div", { class: "field" }, h("label", { for: "field-token" }, "Token"), input,
        h("small", { id: "field-token-note" }, "Logs this browser in for 30 days. The token itself is not kept, and never part of a URL."))),
      problem,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: leave, class: "aside" }, "Log out"),
        h("button", { type: "button", onclick: () => dialog.close() }, "Close"), h("button", { class: "primary" }, "Log in")),
    ),
    "token",
  );
  if (wasAsked) dialog.dataset.asked = "";
  input.focus();
}

/** Another tab has logged in. */
export function tokenFound() {
  if (open?.dataset.asked !== undefined) open.close();
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

