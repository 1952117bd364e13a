// Creates and changes elements, and announces texts to screen readers.

// h("button", {class: "main", onclick: f, "aria-label": "Load"}, "Load"): children are nodes, texts, or lists
// of them; null and false are left out. A property that is false or null is not set.
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Changes a text only if it differs, so that a screen reader or a selection is not disturbed.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

// Lets a screen reader announce a text without moving to it.
export function say(text) {
  setText(document.getElementById("said"), text);
}

// A question that is answered by a button, or by Escape, which is no.
export function confirmed(text, action) {
  const dialog = document.getElementById("question");
  const yes = dialog.querySelector("[value=yes]");
  setText(document.getElementById("question-text"), text);
  setText(yes, action);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), {once: true});
  });
}

// An error that is read out; empty, it takes no room.
export function alertBox() {
  const box = h("p", {role: "alert", class: "error"});
  return {
    element: box,
    show(text) { setText(box, text); },
    clear() { setText(box, ""); },
  };
}

// A label and what it names.
export function field(label, control, hint = "") {
  const id = `field-${control.name.replace(/[^A-Za-z0-9]/g, "_")}`;
  control.id = id;
  const note = hint ? h("span", {class: "note", id: `${id}-hint`}, hint) : null;
  if (note) control.setAttribute("aria-describedby", note.id);
  return h("div", {class: "field"}, h("label", {for: id}, label), control, note);
}

// Names and what they are, as many beside each other as there is room for.
export function facts(name, pairs) {
  return h("dl", {class: "facts", "data-facts": name}, pairs.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value))));
}

// Makes two columns, which are below each other on narrow screens.
export function columns(left, right) {
  return h("div", {class: "columns"}, h("div", {}, left), h("div", {}, right));
}

// A table of rows of nodes or texts; the first of each row is its head.
export function table(caption, head, rows, properties = {}) {
  return h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": caption},
    h("table", properties,
      h("caption", {class: "unseen"}, caption),
      head.length ? h("thead", {}, h("tr", {}, head.map((text) => h("th", {scope: "col"}, text)))) : null,
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, i) =>
        i === 0 ? h("th", {scope: "row"}, cell) : h("td", {}, cell)))))));
}
