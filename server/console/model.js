// One model: its versions, where its time goes, batches, ids, updates and configuration.
import {ask, askJson, modelPath} from "./api.js";
import * as changes from "./changes.js";
import {histogram, parseMetrics, quantile, recently} from "./counts.js";
import {alertBox, columns, facts, h, setClass, setText, table} from "./dom.js";
import {NONE, bytes, count, duration, exact, moment, percent, rate} from "./format.js";
import {formatOf, group, kinds, shapeOf, stateOf} from "./models.js";

const stages = [
  ["queue", "waiting for a worker"], ["compute_input", "decoding and checking"], ["compute_infer", "pooling"],
  ["compute_output", "printing numbers"]];

function versionTable(entry, history, bounds) {
  return table("Versions", ["Version", "State", "Requests", "p50", "p99", "Memory", "About"], entry.versions.map((version) => {
    const now = history.of(version, bounds), state = stateOf(version);
    return [`${version.version}${version === entry.main ? ", default" : ""}`, h("span", {class: `state ${kinds[state]}`}, version.state.toLowerCase()),
      rate(now?.perSecond), duration(now?.p50), duration(now?.p99), version.bytes ? bytes(version.bytes) : NONE, version.reason];
  }), {class: "versions"});
}

function of(samples, name) {
  return samples.filter((sample) => sample.name === name);
}

function sumOf(samples, name) {
  return of(samples, name).reduce((sum, sample) => sum + sample.value, 0);
}

// The widths are those of a plot of one line.
function stageTable(samples) {
  const found = stages.map(([stage, about]) => ({about, ...histogram(samples, "bagserve_stage_duration_seconds", {stage})}));
  const all = found.reduce((sum, stage) => sum + stage.sum, 0);
  return table("Stages of time", ["Stage", "Part", "", "Mean", "p50", "p99"], found.map((stage) => {
    const requests = stage.counts.reduce((sum, value) => sum + value, 0);
    const bounds = stage.bounds.map((bound) => bound * 1e9);
    // Within the first bucket nothing is known but its bound.
    const at = (part) => {
      const ns = stage.sum ? quantile(stage.counts, bounds, part) : requests ? 0 : null;
      return ns && ns < bounds[0] ? `below ${duration(bounds[0])}` : duration(ns);
    };
    return [stage.about, all ? percent(stage.sum, all) : NONE,
      h("meter", {min: 0, max: 1, value: all ? stage.sum / all : 0, "aria-label": `${stage.about}, part of the time`}),
      duration(requests ? stage.sum / requests * 1e9 : null), at(0.5), at(0.99)];
  }), {class: "values"});
}

function batchTable(samples) {
  const {bounds, counts} = histogram(samples, "bagserve_batch_requests", {});
  const most = Math.max(1, ...counts);
  const rows = counts.map((number, i) => {
    const low = i ? bounds[i - 1] + 1 : 1, high = bounds[i];
    const text = high === undefined ? `${low} and more` : low === high ? String(low) : `${low} to ${high}`;
    return number ? [text, count(number), h("meter", {min: 0, max: most, value: number, "aria-label": `Batches of ${text}`})] : null;
  }).filter(Boolean);
  return rows.length ? table("Requests in a batch", ["Requests in a batch", "Batches", ""], rows, {class: "values"})
    : h("p", {class: "note"}, "No batch so far: small requests are answered at once.");
}

// Triton's reasons in words.
const failureReasons = {OTHER: "wrong requests", REJECTED: "rejected under load", CANCELED: "client had left", BACKEND: "server's fault"};

function countTable(samples) {
  const failures = of(samples, "nv_inference_request_failure").filter((sample) => sample.value > 0);
  const last = Math.max(0, ...of(samples, "bagserve_last_inference_timestamp_seconds").map((sample) => sample.value));
  return facts("So far", [
    ["Requests answered", exact(sumOf(samples, "nv_inference_request_success"))],
    ["Answered with an error", exact(failures.reduce((sum, sample) => sum + sample.value, 0)) +
      (failures.length ? ` (${failures.map((sample) => `${failureReasons[sample.labels.reason] ?? sample.labels.reason}: ${exact(sample.value)}`).join(", ")})` : "")],
    ["Bags", exact(sumOf(samples, "nv_inference_count"))],
    ["Rows gathered", exact(sumOf(samples, "bagserve_gathered_rows_total"))],
    ["Bytes gathered", bytes(sumOf(samples, "bagserve_gathered_bytes_total"))],
    ["Missing keys", exact(sumOf(samples, "bagserve_missing_keys_total"))],
    ["Empty bags with the default row", exact(sumOf(samples, "bagserve_default_rows_total"))],
    ["Last answer", moment(last * 1000)]]);
}

// Ids are shown as the statistics have them, as texts: keys have more digits than numbers hold.
function hotRowTable(features) {
  return table("Hottest rows", ["Feature", "Sampled ids", "Hottest 1 %", "Missing keys", "Most looked up"], features.map((feature) => [
    feature.feature, exact(feature.sampled_id_count),
    feature.sampled_id_count ? `${percent(feature.hottest_share, 1)} of lookups` : NONE,
    feature.missing_key_count === undefined ? NONE : exact(feature.missing_key_count),
    feature.top.slice(0, 5).map((row) => `${row.id} (${percent(row.share, 1)})`).join(", ") || NONE]), {class: "hot"});
}

function updateTable(samples) {
  const one = (name) => of(samples, `bagserve_${name}`)[0]?.value;
  if (one("update_sequence") === undefined) return null;
  return facts("Updates of rows", [
    ["Last batch", exact(one("update_sequence"))], ["Batches that were sent and are missing", exact(one("update_lag"))],
    ["Applied", exact(one("updates_applied_total"))], ["Applied before", exact(one("updates_ignored_total"))],
    ["Rejected", exact(one("updates_rejected_total"))], ["Rows put in or removed", exact(one("updated_rows_total"))],
    ["Folders of updates that wait", exact(one("deltas_waiting"))],
    ["Journal", bytes(one("journal_bytes"))], ["Errors of the journal", exact(one("journal_errors_total"))],
    ["Last applied", moment(one("last_update_timestamp_seconds") * 1000)]]);
}

function configTable(config) {
  const parameters = Object.entries(config.parameters ?? {}).map(([key, value]) => [key, h("code", {}, value.string_value)]);
  return h("div", {}, facts("Configuration", parameters),
    h("details", {}, h("summary", {}, "As Triton's ModelConfig"), h("pre", {tabindex: "0"}, JSON.stringify(config, null, 2))));
}

function featureTable(metadata) {
  const features = metadata.parameters?.features;
  if (!features) return null;
  return h("section", {class: "card"}, h("h2", {}, "Features"), table("Features", ["Feature", "Table", "Rows", "Elements", "Format", "Memory"],
    features.map((feature) => [feature.name, h("a", {href: `#/models/${encodeURIComponent(feature.model)}`}, feature.model),
      exact(feature.rows), exact(feature.row_elements), feature.row_format, bytes(feature.bytes)])));
}

function factsOf(entry) {
  return facts("Table", [["Shape", shapeOf(entry.main)], ["Format", formatOf(entry.main)],
    ["Memory", entry.main.bytes ? bytes(entry.main.bytes) : NONE]]);
}

function card(title, ...content) {
  return h("section", {class: "card"}, h("h2", {}, title), content.filter(Boolean));
}

export function show(session, name) {
  const error = alertBox(), changeError = alertBox(), history = recently();
  let entry = null, documented = ""; // the version whose documents are shown
  const state = h("span", {class: "state"}), reason = h("p", {class: "note"});
  const versions = h("div"), live = h("div"), documents = h("div");
  const controls = session.changes_models ? changes.buttons(name, () => entry, changeError, () => refresh()) : null;
  const element = h("div", {},
    h("p", {}, h("a", {href: "#/models"}, "All models")),
    h("h1", {tabindex: "-1"}, name, " ", state), error.element, reason,
    controls?.element ?? h("p", {class: "note"}, changes.whyNot(session)), changeError.element,
    h("p", {}, h("a", {href: `#/try/${encodeURIComponent(name)}`}, "Try a bag of this model")),
    versions, live, documents);

  // Details that a reader has opened stay open: only what differs is replaced.
  function replace(place, ...content) {
    const next = h("div", {}, content);
    if (place.innerHTML !== next.innerHTML) place.replaceChildren(...next.childNodes);
  }

  async function refreshDocuments() {
    const generation = `${entry.main.version} ${entry.main.bytes} ${entry.main.state}`;
    if (generation === documented) return;
    const metadata = await askJson(modelPath(name)), config = await askJson(modelPath(name, "config"));
    replace(documents, featureTable(metadata), card("Configuration", configTable(config)));
    documented = generation;
  }

  async function refresh() {
    const answer = await askJson("v2/server/models");
    history.add(answer);
    entry = group(answer.models.filter((model) => model.name === name))[0];
    if (!entry) {
      error.show(`There is no model ${name}.`);
      return;
    }
    setText(state, stateOf(entry.main));
    setClass(state, `state ${kinds[stateOf(entry.main)]}`);
    setText(reason, entry.main.reason);
    controls?.show(entry);
    replace(versions, card("Versions", versionTable(entry, history, answer.bounds_ns), session.controls
      ? h("p", {class: "note"}, "Other versions in the model's folder are not listed until they are loaded.") : null));
    if (entry.main.state !== "READY") {
      live.replaceChildren();
      documents.replaceChildren();
      documented = "";
      return;
    }
    await refreshDocuments();
    if (entry.main.requests === undefined) {
      replace(live, card("Table", factsOf(entry)), h("p", {class: "note"}, "Nothing is counted: metrics are off."));
      return;
    }
    const samples = parseMetrics(await ask(modelPath(name, "versions", entry.main.version, "metrics")));
    const statistics = await askJson(modelPath(name, "versions", entry.main.version, "stats"));
    const updates = updateTable(samples);
    replace(live, columns(
      [card("Where the time goes", stageTable(samples)), card("Batches", batchTable(samples)),
        card("Hottest rows", hotRowTable(statistics.model_stats[0]?.hot_rows ?? [])),
        updates ? card("Updates of rows", updates) : null],
      [card(entry.main.collection ? "Collection" : "Table", factsOf(entry)), card("So far", countTable(samples))]));
  }

  return {title: name, element, refresh, everyMs: 2000, failed: (text) => text && error.show(text)};
}
