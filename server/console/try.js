// A form that is made from a model's metadata; its answer as numbers and as a picture.
import {Failure, ask, askJson, modelPath} from "./api.js";
import {alertBox, columns, field, h, say, table} from "./dom.js";
import {duration, exact, plural} from "./format.js";
import {picture} from "./picture.js";
import {Mistake, inputsOf, nested, readAnswer, requestOf} from "./request.js";
import * as snippets from "./snippets.js";

const MOST_TEXT = 200000; // numbers that are shown as text

// ---- the form -------------------------------------------------------------------------------------------------

// Numbers that are copied from a column would run together: a field of one line drops its breaks.
function paste(event) {
  const text = event.clipboardData.getData("text"), {target} = event;
  event.preventDefault();
  target.setRangeText(text.replace(/\s+/g, " "), target.selectionStart, target.selectionEnd, "end");
}

function textField(label, name, placeholder, hint) {
  return field(label, h("input", {name, placeholder, autocomplete: "off", spellcheck: "false", onpaste: paste}), hint);
}

function rangeOf(table) {
  if (table.keyed) return "Keys: whole numbers of 64 bits, with commas or spaces between them.";
  return table.rows ? `Row numbers from 0 to ${exact(table.rows - 1)}, with commas or spaces between them.` : "The table has no rows.";
}

function fieldsOf(table, prefix) {
  return [
    textField("Indices", `${prefix}indices`, table.keyed ? "7, 9, 9223372036854775807" : "0, 2, 3", rangeOf(table)),
    textField("Offsets", `${prefix}offsets`, "0, 2", "Where each bag begins; left empty, all are one bag."),
    textField("Weights", `${prefix}weights`, "0.5, 1, 2", "One for each index, or none."),
  ];
}

// Returns the tables of a model: [{prefix, name, facts}].
function tablesOf(metadata) {
  const features = metadata.parameters.features;
  return features ? features.map((feature) => ({prefix: `${feature.name}.`, name: feature.name, facts: feature}))
    : [{prefix: "", name: "", facts: metadata.parameters}];
}

function formFields(metadata) {
  const tables = tablesOf(metadata);
  if (tables.length === 1 && !tables[0].prefix) return fieldsOf(tables[0].facts, "");
  return [h("p", {class: "note"}, "Features whose indices are left empty are not asked."),
    tables.map((one, i) => h("details", {open: i < 8}, h("summary", {}, `${one.name} (${one.facts.model})`),
      h("fieldset", {}, h("legend", {class: "unseen"}, one.name), fieldsOf(one.facts, one.prefix))))];
}

function weightTypeOf(metadata) {
  return metadata.inputs.find((input) => input.name === "per_sample_weights")?.datatype ?? "FP32";
}

// Returns whether the model's offsets end with the number of all indices. The form's offsets do not.
function hasLastOffset(config) {
  return Object.entries(config.parameters).some(([key, value]) => key.endsWith("include_last_offset") && value.string_value === "true");
}

// The request as the form has it.
function read(form, {metadata, config}, session) {
  const get = (name) => form.elements.namedItem(name).value.trim();
  const tables = tablesOf(metadata);
  const asked = tables.filter(({prefix}) => !prefix || ["indices", "offsets", "weights"].some((name) => get(prefix + name)));
  if (!asked.length) throw new Mistake("no feature has indices");
  const inputs = asked.flatMap(({prefix}) => inputsOf({indices: get(`${prefix}indices`), offsets: get(`${prefix}offsets`),
    weights: get(`${prefix}weights`)}, prefix, prefix ? "FP32" : weightTypeOf(metadata)));
  const explains = session.options?.find((option) => option.key === "explain")?.value === "on";
  const reduction = get("reduction");
  return requestOf(inputs, {...(reduction && {reduction}), ...(hasLastOffset(config) && {include_last_offset: false}),
    ...(explains && {explain: true})});
}

// An example that any table with rows answers.
function fillIn(form, metadata) {
  for (const {prefix, facts} of tablesOf(metadata).slice(0, 3)) {
    if (facts.keyed) continue;
    const last = Math.max(0, facts.rows - 1);
    form.elements.namedItem(`${prefix}indices`).value = [0, 2, last].map((row) => Math.min(row, last)).join(", ");
    form.elements.namedItem(`${prefix}offsets`).value = "0, 2";
  }
}

// ---- the answer -----------------------------------------------------------------------------------------------

function explanation(feature) {
  const kinds = ["padding", "pruned", "missing", "out_of_range"].filter((kind) => feature.bags.some((bag) => bag[kind]));
  return [h("h3", {}, feature.name), table(`Explanation of the bags of ${feature.name}`, ["Bag", "Rows", "Default row", ...kinds.map((kind) => `${kind.replaceAll("_", " ")} at`)],
    feature.bags.slice(0, 200).map((bag, i) => [String(i), exact(bag.rows), bag.default ? "yes" : "no",
      ...kinds.map((kind) => (bag[kind] ?? []).join(", "))]))];
}

function outputCard(output) {
  const bags = output.shape[0];
  const long = output.data.length > MOST_TEXT;
  const rows = long ? Math.max(1, Math.floor(MOST_TEXT / (output.data.length / bags))) : bags;
  const data = long ? output.data.slice(0, output.data.length / bags * rows) : output.data;
  return h("section", {class: "card"}, h("h2", {}, `${output.name} `, h("span", {class: "note"},
    `${output.datatype} [${output.shape.join(", ")}]`)),
  picture(output.name, data, rows),
  long ? h("p", {class: "note"}, `The first ${plural(rows, "bag")} of ${exact(bags)}.`) : null,
  h("pre", {"data-role": "embeddings", "data-output": output.name, tabindex: "0", "aria-label": `Numbers of ${output.name}`},
    nested(data, [rows, ...output.shape.slice(1)])));
}

function copyable(title, text) {
  const code = h("pre", {tabindex: "0", "aria-label": `${title} to copy`, "data-snippet": title.toLowerCase()}, text);
  const button = h("button", {type: "button", "aria-label": `Copy ${title}`, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      say(`${title} is copied.`);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      say(`${title} is selected: copy it with your keyboard.`);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }}, "Copy");
  return h("details", {}, h("summary", {}, title), button, code);
}

function snippetCard(model, body, session) {
  const url = new URL(modelPath(model, "infer"), document.baseURI).href;
  return h("section", {class: "card"}, h("h2", {}, "The same request"),
    session.needs_token ? h("p", {class: "note"}, "The token is taken from the variable TOKEN.") : null,
    copyable("curl", snippets.curl(url, body, session.needs_token)),
    copyable("Python", snippets.python(url, body, session.needs_token)),
    copyable("C", snippets.c(url, body, session.needs_token)));
}

function answerCards(model, text, body, ns, session) {
  const answer = readAnswer(text), {warnings, explain} = answer.parameters ?? {};
  return [
    h("p", {role: "status", class: "note"}, `Version ${answer.model_version} answered in ${duration(ns)}, including the network.`),
    warnings?.map((warning) => h("p", {class: "warning"}, warning)),
    columns(answer.outputs.map(outputCard),
      [explain ? h("section", {class: "card"}, h("h2", {}, "Explanation of the bags"), explain.map(explanation)) : null,
        snippetCard(model, body, session)])];
}

// ---- the page -------------------------------------------------------------------------------------------------

function hidden(session) {
  const why = session.listener === "admin" && !session.needs_token
    ? "This listener accepts inference only with a token. Open the console at the server's main address."
    : "This token does not cover inference. Use a token of scope infer or admin.";
  return {title: "Try a bag", element: h("div", {}, h("h1", {tabindex: "-1"}, "Try a bag"), h("p", {class: "card"}, why)),
    everyMs: 60000};
}

export function show(session, wanted) {
  if (!session.infers) return hidden(session);
  const error = alertBox(), fields = h("div", {class: "fields"}), answer = h("div");
  const model = h("select", {name: "model", onchange: () => choose()});
  const reduction = h("select", {name: "reduction"}, h("option", {value: ""}, "as configured"),
    ["sum", "mean", "max", "sqrtn", "none"].map((name) => h("option", {value: name}, name)));
  const button = h("button", {name: "ask", class: "main"}, "Ask");
  const example = h("button", {type: "button", onclick: () => fillIn(form, chosen.metadata)}, "Fill in an example");
  const form = h("form", {class: "card", onsubmit: submit}, field("Model", model), fields, field("Reduction", reduction),
    h("div", {class: "bar"}, button, example));
  const element = h("div", {}, h("h1", {tabindex: "-1"}, "Try a bag"), form, error.element, answer);
  let chosen = null, turn = 0; // the model's metadata and configuration

  async function choose() {
    const mine = ++turn;
    answer.replaceChildren();
    error.clear();
    button.disabled = example.disabled = true;
    try {
      const [metadata, config] = await Promise.all([askJson(modelPath(model.value)), askJson(modelPath(model.value, "config"))]);
      if (mine !== turn) return;
      chosen = {metadata, config};
      fields.replaceChildren(...formFields(metadata).flat());
      example.disabled = tablesOf(metadata).every(({facts}) => facts.keyed || !facts.rows);
      button.disabled = false;
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      fields.replaceChildren();
      error.show(failure.message);
    }
  }

  async function submit(event) {
    event.preventDefault();
    error.clear();
    button.disabled = true;
    try {
      const body = read(form, chosen, session), begun = performance.now();
      const text = await ask(modelPath(model.value, "infer"), {method: "POST", body, timeoutMs: 60000});
      answer.replaceChildren(...answerCards(model.value, text, body, (performance.now() - begun) * 1e6, session).flat().filter(Boolean));
    } catch (failure) {
      if (!(failure instanceof Failure || failure instanceof Mistake)) throw failure;
      answer.replaceChildren();
      error.show(failure.message);
    } finally {
      button.disabled = false;
    }
  }

  async function refresh() {
    const {models} = await askJson("v2/models");
    const before = model.value || wanted;
    model.replaceChildren(...models.map((name) => h("option", {value: name, selected: name === before}, name)));
    page.refresh = null; // the form stays as it is filled in
    if (models.length) await choose();
    else error.show("No model is served.");
  }

  const page = {title: "Try a bag", element, refresh, everyMs: 3000, failed: (text) => text && error.show(text)};
  return page;
}
