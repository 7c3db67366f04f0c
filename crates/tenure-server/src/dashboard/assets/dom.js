// Building the page. Text is only ever set as text: nothing here, or anywhere else in the dashboard, makes
// markup of a string.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "rect", "line", "circle", "g", "text", "title"]);

/** An element. `properties`: class, on* handlers, data-* and other attributes; false, null and undefined leave one out. */
export function h(tag, properties = {}, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Sets a text if it has changed: an unchanged one keeps its selection, and is not read out again. */
export function text(element, value) {
  const wanted = value === null || value === undefined ? "" : String(value);
  if (element.textContent !== wanted) element.textContent = wanted;
  return element;
}

/** Sets an attribute if it has changed; null takes it away. */
export function attribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/** Puts new children in place of the old ones. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** The elements of every list by their keys. */
const lists = new WeakMap();

/**
 * Makes the children of `parent` match `items`, keeping the element of each key, so that focus, selection
 * and scroll position outlive an update. `create(item)` gives an element, `update(element, item)` shows it.
 */
export function list(parent, items, key, create, update) {
  let known = lists.get(parent);
  if (!known) lists.set(parent, (known = new Map()));
  const seen = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    if (seen.has(name)) continue;
    seen.add(name);
    let element = known.get(name);
    if (!element) {
      element = create(item);
      known.set(name, element);
    }
    if (element === place) place = place.nextSibling;
    else parent.insertBefore(element, place);
    update(element, item);
  }
  for (const [name, element] of known) {
    if (seen.has(name)) continue;
    element.remove();
    known.delete(name);
  }
}

/** A table row whose cells are found by name: `row.named.state`. */
export function row(names) {
  const cells = {};
  const element = h("tr");
  for (const [name, kind] of Object.entries(names)) {
    cells[name] = h(kind === "head" ? "th" : "td", kind === "head" ? { scope: "row" } : { class: kind || null });
    element.append(cells[name]);
  }
  element.named = cells;
  return element;
}

/** A table with a caption for those who cannot see it. `heads`: text, or [text or elements, class]. */
export function table(caption, heads, ...bodies) {
  const cells = heads.map((head) => {
    const [label, kind] = Array.isArray(head) ? head : [head];
    return h("th", { scope: "col", class: kind }, label);
  });
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, cells)), ...bodies),
  );
}

/** A panel with a heading. */
export function panel(title, { id, tools, note, kind } = {}, ...children) {
  const heading = `heading-${id ?? title.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  return h(
    "section",
    { class: `panel ${kind ?? ""}`, id, "aria-labelledby": heading },
    h("div", { class: "panel-head" }, h("h2", { id: heading }, title), note && h("span", { class: "note" }, note), tools),
    children,
  );
}
