// The options that hold, and where each comes from.
import {askJson} from "./api.js";
import {alertBox, h, setText, table} from "./dom.js";
import {bytes, exact, plural} from "./format.js";

const sources = {default: "default", file: "file", variable: "variable", flag: "flag"};

function valueOf(option, value) {
  if (value === null) return "none";
  if (typeof value === "string") return value === "" ? "empty" : value;
  if (option.unit === "bytes" && value >= 1024) return `${bytes(value)} (${exact(value)})`;
  if (!option.unit) return String(value); // a port is no amount
  return `${exact(value)} ${value === 1 ? option.unit.replace(/s$/, "") : option.unit}`;
}

// Returns what a 0 means, as the description of the option says; "": nothing else than 0.
function meaningOfZero(option) {
  return option.value === 0 ? /(?:^|\s)0: ([^.]*)\./.exec(option.about)?.[1] ?? "" : "";
}

// Returns the value that holds: the option's own, or what the server has derived from the machine.
function heldValue(option, derived) {
  const held = derived[option.key] ?? option.value;
  const isDerived = held !== option.value || (option.source === "default" && option.value !== option.default);
  const more = isDerived ? "derived" : meaningOfZero(option);
  return [valueOf(option, held), more && h("span", {class: "note"}, ` (${more})`)];
}

function rowOf(option, derived) {
  return [h("code", {}, option.key), h("span", {"data-option": option.key}, heldValue(option, derived)),
    h("span", {class: `source ${option.source}`}, sources[option.source]),
    option.source === "default" ? "" : valueOf(option, option.default), option.about];
}

export function show(session) {
  const error = alertBox(), list = h("div"), total = h("span", {class: "note", role: "status"});
  let {options, derived} = session;
  const search = h("input", {type: "search", name: "search", placeholder: "Part of a name", "aria-label": "Options that have", oninput: draw});
  const changed = h("input", {type: "checkbox", name: "changed", id: "changed", onchange: draw});
  const element = h("div", {},
    h("h1", {tabindex: "-1"}, "Settings"), error.element,
    h("p", {class: "note"}, "The values that this server uses. Flags override variables (BAGSERVE_...), and variables override " +
      "the file. A change needs a restart."),
    h("div", {class: "bar"}, search, h("label", {for: "changed", class: "check"}, changed, "Only those that are set"), total), list,
    h("p", {class: "note"}, "Plots by Chart.js, under the ", h("a", {href: "console/copyright"}, "MIT licence"), "."));

  function draw() {
    const part = search.value.toLowerCase();
    const visible = (options ?? []).filter((option) => (!changed.checked || option.source !== "default") &&
      (option.key.includes(part) || option.about.toLowerCase().includes(part)));
    const sections = [...new Set(visible.map((option) => option.section))];
    list.replaceChildren(...sections.map((section) => h("section", {class: "card"}, h("h2", {}, section || "models"),
      table(`Options: ${section || "models"}`, ["Option", "Value", "Source", "Default", "About"],
        visible.filter((option) => option.section === section).map((option) => rowOf(option, derived)), {class: "options"}))));
    setText(total, options ? plural(visible.length, "option") : "");
  }

  async function refresh() {
    ({options, derived} = await askJson("v2/server/options"));
    draw();
    page.refresh = null; // options do not change
  }

  const page = {title: "Settings", element, refresh: options ? null : refresh, everyMs: 5000, failed: (text) => error.show(text)};
  draw();
  return page;
}
