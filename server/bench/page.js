// The page of `bagserve bench --html`: the JSON of the report, with plots by Chart.js. The program puts the
// console's dom.js and format.js before this text, so that all is one module. Every text of the report was chosen
// by somebody else, and becomes text, never HTML.
/* global Chart, h, facts, table, count, rate, bytes, significant, NONE */

const report = JSON.parse(document.getElementById("report").textContent);
const before = JSON.parse(document.getElementById("before").textContent);
const runs = report.runs;
// The run that tiles and plots show: the one that decides, or the last.
const shown = runs[report.deciding_run ?? runs.length - 1];

function ms(value) {
  return `${significant(value)} ms`;
}

// ---- plots ----

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Axes by their kind. A logarithmic axis has one tick for each power of ten.
const axes = {
  number: () => ({type: "linear", beginAtZero: true, ticks: {maxTicksLimit: 6, callback: (value) => count(value)}}),
  seconds: () => ({type: "linear", ticks: {maxTicksLimit: 8, callback: (value) => significant(value)}}),
  ms: () => ({type: "logarithmic", ticks: {callback: (value) => significant(value)},
    afterBuildTicks(axis) {
      axis.ticks = [];
      for (let power = Math.floor(Math.log10(axis.min)); 10 ** power <= axis.max * 1.001; power++) axis.ticks.push({value: 10 ** power});
    }}),
  // The share of all requests: 0 is 0 %, 1 is 90 %, 2 is 99 %. The last point stands for all.
  share: (most) => ({type: "linear", min: 0, max: most,
    afterBuildTicks(axis) { axis.ticks = [0.30103, 1, 2, 3, 4].filter((at) => at <= most).map((value) => ({value})); },
    ticks: {callback: (value) => value < 1 ? "50 %" : `${100 - 10 ** (2 - value)} %`}}),
};

const charts = [];

function styleAxis(axis, title) {
  const muted = colour("--muted"), rule = colour("--rule");
  return {...axis, title: {display: true, text: title, color: muted}, ticks: {...axis.ticks, color: muted},
    grid: {color: rule, borderColor: rule}};
}

function draw({canvas, x, y, lines}) {
  const datasets = lines.map(({name, points, style, dots, dashed}) => ({
    label: name, data: points, borderColor: colour(style), backgroundColor: colour(style), borderWidth: 2,
    pointRadius: dots ? 3 : 0, pointHitRadius: 6, borderDash: dashed ? [6, 4] : [], tension: 0}));
  return new Chart(canvas, {type: "line", data: {datasets}, options: {
    animation: false, responsive: true, maintainAspectRatio: false, parsing: false, normalized: true,
    interaction: {mode: "nearest", axis: "x", intersect: false},
    scales: {x: styleAxis(x.axis, x.title), y: styleAxis(y.axis, y.title)},
    plugins: {
      legend: {display: lines.length > 1, labels: {color: colour("--text"), boxWidth: 18, boxHeight: 2}},
      tooltip: {callbacks: {title: () => "", label: ({dataset, parsed}) => `${dataset.label}: ${significant(parsed.y)} at ${significant(parsed.x)}`}},
    },
  }});
}

// A plot as a card. A logarithmic axis leaves out what is not above 0.
function plot(title, x, y, lines) {
  for (const line of lines) line.points = line.points.filter((point) => y.axis.type !== "logarithmic" || point.y > 0);
  const drawn = lines.filter((line) => line.points.length);
  if (!drawn.length) return null;
  const summary = drawn.map(({name, points}) => `${name} up to ${significant(Math.max(...points.map((p) => p.y)))}`).join(", ");
  const canvas = h("canvas", {role: "img", "aria-label": `${title}. ${summary}.`});
  charts.push({canvas, x, y, lines: drawn});
  return h("section", {class: "card plot"}, h("h2", {}, title), h("div", {class: "canvas"}, canvas));
}

// One percentile of all runs that had a rate, by rate. A rate that was measured again has its median.
function byRate(of, percentile) {
  const found = new Map();
  for (const run of of) {
    if (run.rate !== null && run.answered) found.set(run.rate, [...(found.get(run.rate) ?? []), run.latency_ms[percentile]]);
  }
  return [...found].sort(([a], [b]) => a - b)
    .map(([x, values]) => ({x, y: values.sort((a, b) => a - b)[Math.floor((values.length - 1) / 2)]}));
}

function plotRates() {
  const p99 = byRate(runs, "p99");
  if (p99.length < 2) return null;
  const ends = [p99[0].x, p99[p99.length - 1].x];
  return plot("Latency by rate", {axis: axes.number(), title: "requests due in a second"}, {axis: axes.ms(), title: "ms"}, [
    {name: "p50", points: byRate(runs, "p50"), style: "--line-1", dots: true},
    {name: "p99", points: p99, style: "--line-2", dots: true},
    {name: "p99 before", points: before ? byRate(before.runs, "p99") : [], style: "--line-5", dots: true, dashed: true},
    {name: "objective for p99", points: ends.map((x) => ({x, y: report.slo_ms})), style: "--bad", dashed: true}]);
}

function plotPercentiles() {
  const points = (shown.percentiles_ms ?? []).map((y, i) => ({x: i / 8, y}));
  return plot("Percentiles", {axis: axes.share((points.length - 1) / 8), title: "share of requests within the latency"},
    {axis: axes.ms(), title: "ms"}, [{name: "latency", points, style: "--line-1"}]);
}

function overTime(values, scale = 1) {
  const {window_s: width} = shown.over_time;
  return values.map((y, i) => ({x: (i + 0.5) * width, y: y * scale}));
}

function plotsOverTime() {
  const seconds = () => ({axis: axes.seconds(), title: "seconds"});
  const over = shown.over_time;
  if (!over) return [];
  return [
    plot("Latency over time", seconds(), {axis: axes.ms(), title: "ms"}, [
      {name: "p50", points: overTime(over.p50_ms), style: "--line-1"},
      {name: "p99", points: overTime(over.p99_ms), style: "--line-2"}]),
    plot("Requests over time, by when they were due", seconds(), {axis: axes.number(), title: "in a second"}, [
      {name: "answered with 200", points: overTime(over.answered, 1 / over.window_s), style: "--line-1"},
      {name: "errors", points: overTime(over.errors, 1 / over.window_s), style: "--line-2"}])];
}

// ---- texts and tables ----

function tile(value, name) {
  return h("div", {class: "tile"}, h("span", {class: "value"}, value), h("span", {class: "name"}, name));
}

function tiles() {
  return h("div", {class: "tiles"},
    report.highest_rate === null ? null : tile(rate(report.highest_rate), `highest rate that holds: p99 within ${ms(report.slo_ms)}`),
    tile(rate(shown.requests_per_s), "requests answered"),
    tile(rate(shown.rows_per_s), "rows gathered"),
    tile(ms(shown.latency_ms.p50), "p50: half of the requests are faster"),
    tile(ms(shown.latency_ms.p99), "p99: 99 of 100 are faster"));
}

function workloadOf({workload, date, host, processor, mode, seed}) {
  const asked = workload.get ? [["GET", workload.get]] : [
    ["bags in a request", `${count(workload.bags)}${workload.tables > 1 ? " of each feature" : ""}`],
    ["ids in a bag", workload.ids],
    ["skew of the ids", workload.zipf ? `Zipf, exponent ${workload.zipf}` : "none"],
    ["weights", workload.weights ? "one with each id" : "none"],
    ["reduction", workload.reduction ?? "the model's"],
    ["tables", `${count(workload.tables)}${workload.table_bytes ? `, ${bytes(workload.table_bytes)}` : ""}`],
    ["body", workload.body]];
  return [...asked, ["connections", count(workload.connections)], ["mode", mode], ["seed", seed],
    ["date", date], ["host", host], ["processor", processor]];
}

const runColumns = [
  ["due", (run) => rate(run.rate)], ["requests", (run) => rate(run.requests_per_s)],
  ["bags", (run) => rate(run.bags_per_s)], ["rows", (run) => rate(run.rows_per_s)],
  ["GB/s", (run) => significant(run.bytes_gathered_per_s / 1e9)],
  ...Object.keys(shown.latency_ms).map((key) => [`${key} ms`, (run) => significant(run.latency_ms[key])]),
  ["errors", (run) => count(Object.values(run.errors).reduce((sum, error) => sum + error.count, 0))],
  ["late p99 ms", (run) => run.rate === null ? NONE : significant(run.generator_late_ms.p99)]];

function tableOfRuns(title, {runs: of, deciding_run: deciding}) {
  const rows = of.map((run) => runColumns.map(([, text]) => text(run)));
  const element = table(title, runColumns.map(([name]) => name), rows, {class: "runs"});
  if (deciding !== null) element.querySelectorAll("tbody tr")[deciding].className = "deciding";
  return h("section", {class: "card"}, h("h2", {}, title), element,
    h("p", {class: "note"}, "due: the rate at which requests were due; –: each followed the reply before it. ",
      "late p99: the generator's own delay. ",
      deciding === null ? null : "The marked run decides: it has the highest rate that holds."));
}

function tableOfErrors() {
  const rows = runs.flatMap((run) => Object.entries(run.errors).map(([kind, {count: number, first}]) =>
    [rate(run.rate), kind, count(number), first]));
  return rows.length ? h("section", {class: "card"}, h("h2", {}, "Errors"),
    table("Errors", ["due", "status", "count", "sentence of the first"], rows, {class: "errors"})) : null;
}

// ---- the page ----

function show() {
  document.title = `bagserve bench: ${report.model || report.workload.get}`;
  const plots = [plotRates(), plotPercentiles(), ...plotsOverTime()];
  document.getElementById("page").replaceChildren(
    h("h1", {}, document.title),
    h("p", {class: "note"}, report.url),
    h("section", {class: "card"}, h("h2", {}, "Workload"), facts("workload", workloadOf(report))),
    ...report.hindered_by ? [h("p", {class: "warning"}, `No verdict. ${report.hindered_by}`)] : [],
    ...report.notes.map((note) => h("p", {class: "warning"}, note)),
    tiles(),
    h("p", {class: "note"}, runs.length > 1 ? `Tiles and plots over time are of the run ${shown.rate === null
      ? "without a rate" : `at ${rate(shown.rate)}`}.` : ""),
    h("div", {class: "plots"}, plots.filter(Boolean)),
    tableOfRuns("All runs", report),
    ...before ? [tableOfRuns(`Before: ${before.model || before.workload.get} of ${before.url}`, before),
      h("section", {class: "card"}, h("h2", {}, "Workload before"), facts("before", workloadOf(before)))] : [],
    tableOfErrors() ?? "");
}

let drawn = [];

function paint() {
  drawn.forEach((chart) => chart.destroy());
  drawn = charts.map(draw);
}

show();
paint();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
