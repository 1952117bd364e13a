// The server as a whole: numbers of the last ten seconds, and plots of the last 15 minutes.
import {askJson} from "./api.js";
import {plot} from "./charts.js";
import {alertBox, h, setClass, setText} from "./dom.js";
import {NONE, bytes, count, duration, percent, plural, rate, span} from "./format.js";

function tile(name) {
  const value = h("span", {class: "value"}, NONE), note = h("span", {class: "note"});
  return {
    element: h("div", {class: "tile", "data-tile": name}, h("span", {class: "name"}, name), value, note),
    show(text, more = "", kind = "") {
      setText(value, text);
      setText(note, more);
      setClass(value, `value ${kind}`);
    },
  };
}

function largest(values) {
  return values.reduce((most, value) => Math.max(most, value ?? 0), 0);
}

function last(values) {
  return values.length ? values[values.length - 1] : null;
}

// "Now 1.2 MiB, at most 5 MiB." of each column.
function summary(columns, format) {
  return Object.entries(columns).map(([name, values]) =>
    `${name}: now ${format(last(values))}, at most ${format(largest(values))}.`).join(" ");
}

const states = {
  ready: ["Ready", "good"],
  loading: ["Loading", "busy"],
  leaving: ["Leaving", "bad"],
  draining: ["Stopping", "bad"],
};

function showTiles(tiles, answer) {
  const {recent, columns} = answer;
  const seconds = recent.span_ms / 1000 || 1;
  const [state, kind] = states[answer.state];
  const uptime = span((answer.until_ms - answer.started_ms) / 1000);
  const target = answer.latency_target_ms;
  tiles.State.show(state, `${answer.version}, up ${uptime}`, kind);
  tiles.Models.show(count(answer.models_ready), answer.models > answer.models_ready
    ? `of ${plural(answer.models, "version")} ready` : `${answer.models === 1 ? "version" : "versions"}, all ready`,
  answer.models > answer.models_ready ? "warn" : "");
  tiles.Requests.show(rate(recent.requests / seconds), "answered with rows");
  tiles.Rows.show(rate(recent.rows / seconds), "gathered");
  tiles.p50.show(duration(recent.p50_ns), "half are faster");
  tiles.p99.show(duration(recent.p99_ns), target ? `target ${target} ms` : "99 of 100 are faster",
    target && recent.p99_ns > target * 1e6 ? "bad" : "");
  tiles.Waiting.show(count(last(columns.waiting)), "for a worker");
  tiles.Rejected.show(rate(recent.rejected / seconds), "with an error", recent.rejected ? "warn" : "");
  tiles["Busy workers"].show(`${count(last(columns.busy_workers))} of ${answer.workers}`, "pool large requests");
  tiles.Processors.show(percent(recent.cpu_ms, recent.span_ms), `of one; there ${answer.processors === 1 ? "is" : "are"} ${answer.processors}`);
  const requestBytes = last(columns.request_bytes), tableBytes = last(columns.table_bytes);
  tiles["Request memory"].show(bytes(requestBytes), answer.max_request_bytes ? `of ${bytes(answer.max_request_bytes)}` : "no limit",
  requestBytes > 0.9 * answer.max_request_bytes ? "bad" : "");
  tiles["Table memory"].show(bytes(tableBytes), answer.max_table_bytes
    ? `of ${bytes(answer.max_table_bytes)}` : `process: ${bytes(last(columns.resident_bytes))}`);
}

const names = ["State", "Models", "Requests", "Rows", "p50", "p99", "Waiting", "Rejected", "Busy workers", "Processors",
  "Request memory", "Table memory"];

// Where programs read the numbers: a link, unless opening it would need the token.
function metricsNote(session) {
  const metrics = session.options?.find((option) => option.key === "metrics")?.value;
  if (metrics === "off") return null;
  const path = session.needs_token ? h("code", {}, "/metrics") : h("a", {href: "metrics"}, "/metrics");
  return [" Prometheus reads them, and more, at ", path, "."];
}

const NO_REQUESTS = "No requests in these 15 minutes.";

export function show(session) {
  const error = alertBox();
  const tiles = Object.fromEntries(names.map((name) => [name, tile(name)]));
  const plots = {
    requests: plot("Requests per second", count, {filled: true, empty: NO_REQUESTS}),
    latency: plot("Latency", duration, {scale: "powers", empty: NO_REQUESTS}),
    queue: plot("Waiting requests and busy workers", count),
    rejected: plot("Rejected per second, by reason", count, {named: true, empty: "None in these 15 minutes."}),
    rows: plot("Rows per second", count, {filled: true, empty: NO_REQUESTS}),
    memory: plot("Memory", bytes, {scale: "bytes"}),
  };
  const element = h("div", {},
    h("h1", {tabindex: "-1"}, "Overview"), error.element,
    h("div", {class: "tiles"}, names.map((name) => tiles[name].element)),
    h("p", {class: "note"}, "Numbers are of the last 10 seconds, plots of the last 15 minutes, which the server keeps.",
      metricsNote(session)),
    h("div", {class: "plots"}, Object.values(plots).map((one) => one.element)));

  function draw(name, columns, format, end) {
    plots[name].show(columns, end, summary(columns, format));
  }

  async function refresh() {
    const answer = await askJson("v2/server/history");
    const {columns, until_ms: end} = answer;
    showTiles(tiles, answer);
    draw("requests", {"requests/s": columns.requests}, count, end);
    draw("latency", {p99: columns.p99_ns, p50: columns.p50_ns}, duration, end);
    draw("queue", {waiting: columns.waiting, "busy workers": columns.busy_workers}, count, end);
    draw("rejected", Object.fromEntries(Object.entries(answer.rejected).map(([reason, values]) =>
      [reason.replaceAll("_", " "), values])), count, end);
    draw("rows", {"rows/s": columns.rows}, count, end);
    draw("memory", {process: columns.resident_bytes, tables: columns.table_bytes, requests: columns.request_bytes}, bytes, end);
    element.setAttribute("data-seconds", plural(answer.seconds, "second"));
  }

  return {
    title: "Overview", element, refresh, everyMs: 2000,
    failed: (text) => error.show(text),
    stop() {
      Object.values(plots).forEach((one) => one.stop());
    },
  };
}
