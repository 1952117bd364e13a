// Plots over the last minutes, by Chart.js, in the page's colours.
/* global Chart */
import {h} from "./dom.js";
import {clock} from "./format.js";

const all = new Set();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const lines = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5"];

function paint(chart) {
  const {options} = chart;
  chart.data.datasets.forEach((set, i) => {
    const line = colour(lines[i % lines.length]);
    set.borderColor = line;
    set.backgroundColor = set.filled ? `${line}33` : line;
  });
  for (const scale of Object.values(options.scales)) {
    scale.ticks.color = colour("--muted");
    scale.grid.color = colour("--rule");
    scale.grid.borderColor = colour("--rule");
  }
  options.plugins.legend.labels.color = colour("--text");
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of all) {
    paint(chart);
    chart.update("none");
  }
});

// Marks at round numbers of bytes, which are others than those of ten.
function markBytes(axis) {
  const step = 2 ** Math.ceil(Math.log2(Math.max(axis.max, 4) / 4));
  axis.max = step * Math.ceil(axis.max / step);
  axis.ticks = [];
  for (let value = 0; value <= axis.max; value += step) axis.ticks.push({value});
}

// Durations from microseconds to seconds. Lines and points have room at both ends of the axis, and so has the next mark.
// One mark for each power of ten, and those at 2 and 5 between them if there are few powers.
function markPowers(axis) {
  axis.min /= 1.25;
  axis.max *= 1.25;
  const steps = axis.max / axis.min > 100 ? [1] : [1, 2, 5];
  axis.ticks = [];
  for (let power = Math.floor(Math.log10(axis.min)); 10 ** power <= axis.max; power++) {
    for (const step of steps) {
      const value = step * 10 ** power;
      if (value >= axis.min && value <= axis.max) axis.ticks.push({value});
    }
  }
}

const scales = {
  linear: {beginAtZero: true},
  bytes: {beginAtZero: true, afterBuildTicks: markBytes},
  powers: {type: "logarithmic", afterBuildTicks: markPowers},
};

// A second or two that the server was too busy to sample are no gap.
const MOST_GAP = 5;

function optionsOf(format, end, scale) {
  return {
    animation: false,
    responsive: true,
    maintainAspectRatio: false,
    parsing: false,
    normalized: true,
    interaction: {mode: "index", intersect: false, axis: "x"},
    elements: {point: {radius: 0, hitRadius: 4}, line: {borderWidth: 1.5}},
    scales: {
      x: {type: "linear", max: 0, grid: {display: false},
        ticks: {maxRotation: 0, autoSkip: true, autoSkipPadding: 12,
          callback(seconds) { return clock(end() + seconds * 1000, this.min > -240); }}},
      y: {...scales[scale], grid: {},
        ticks: {maxTicksLimit: 5, callback: (value) => format(value)}},
    },
    plugins: {
      legend: {align: "end", labels: {boxWidth: 12, boxHeight: 2}},
      tooltip: {callbacks: {
        title: (items) => items.length ? clock(end() + items[0].parsed.x * 1000, true) : "",
        label: (item) => `${item.dataset.label}: ${format(item.parsed.y)}`,
      }},
    },
  };
}

function pointsOf(values) {
  return values.flatMap((y, i) => y === null ? [] : [{x: i + 1 - values.length, y}]);
}

// A second between others that are not known has no line: it is shown as a point.
function isAlone(points, i) {
  return [i - 1, i + 1].every((j) => !points[j] || Math.abs(points[j].x - points[i].x) > MOST_GAP);
}

// A young server's minutes take the whole width.
function setSpan(scale, seconds) {
  const minutes = Math.min(15, Math.max(1, Math.ceil(seconds / 60)));
  scale.min = -60 * minutes;
  scale.ticks.stepSize = minutes <= 5 ? 60 * minutes / 4 : 60 * Math.ceil(minutes / 5);
}

// A plot of some columns, each a number or null for each second. `describe` says in words what it shows.
// show({name: values, ...}, endMs, summary). One that is `named` names its column though it is the only one. One that has
// nothing but zeros or unknown values shows the text `empty` instead, if it is given.
export function plot(title, format, {filled = false, scale = "linear", named = false, empty = ""} = {}) {
  const canvas = h("canvas", {role: "img", "aria-label": title});
  const frame = h("div", {class: "canvas"}, canvas), none = h("p", {class: "note empty", hidden: true}, empty);
  const element = h("section", {class: "card plot"}, h("h2", {}, title), frame, none);
  let endMs = Date.now();
  const chart = new Chart(canvas, {type: "line", data: {datasets: []}, options: optionsOf(format, () => endMs, scale)});
  all.add(chart);
  return {
    element,
    show(columns, end, summary) {
      endMs = end;
      const names = Object.keys(columns);
      none.hidden = !empty || names.some((name) => columns[name].some(Boolean));
      frame.hidden = !none.hidden;
      chart.options.plugins.legend.display = named || names.length > 1;
      const before = new Map(chart.data.datasets.map((set) => [set.label, set]));
      chart.data.datasets = names.map((name) => {
        const values = columns[name];
        const set = before.get(name) ?? {label: name, filled};
        set.fill = set.filled;
        set.data = pointsOf(values);
        set.pointRadius = set.data.map((point, i) => isAlone(set.data, i) ? 2 : 0);
        set.spanGaps = MOST_GAP;
        return set;
      });
      setSpan(chart.options.scales.x, names.length ? columns[names[0]].length : 900);
      paint(chart);
      chart.update("none");
      canvas.setAttribute("aria-label", `${title}. ${summary}`);
    },
    stop() {
      all.delete(chart);
      chart.destroy();
    },
  };
}
