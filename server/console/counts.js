// Counters that only grow: histograms, rates between two answers, and metrics in Prometheus' text format.

// Returns the duration in ns below which a part of all requests is, as if they lay evenly between two bounds, or null
// without requests. counts[i] is the number of requests up to bounds[i] and above the bound before.
export function quantile(counts, bounds, part) {
  const all = counts.reduce((sum, value) => sum + value, 0);
  if (!all) return null;
  const wanted = Math.ceil(all * part);
  let below = 0, i = 0;
  while (below + counts[i] < wanted) below += counts[i++];
  const low = i ? bounds[i - 1] : 0;
  if (i >= bounds.length) return low;
  return low + (bounds[i] - low) * (wanted - below) / counts[i];
}

// Returns the counts between two answers about a model. Counts that began again start at 0.
function since(now, before) {
  if (!before || now.requests < before.requests) return now;
  return {
    requests: now.requests - before.requests,
    rows: now.rows - before.rows,
    failures: now.failures - before.failures,
    durations: now.durations.map((value, i) => value - (before.durations[i] ?? 0)),
  };
}

const WINDOW_NS = 30e9;

// Keeps the last lists of models, and says what each did in the last half minute.
export function recently() {
  const lists = []; // {at_ns, models: Map}
  return {
    add(answer) {
      const models = new Map(answer.models.map((model) => [`${model.name}/${model.version}`, model]));
      lists.push({at_ns: answer.at_ns, models});
      const most = answer.models.length > 500 ? 6 : 16;
      while (lists.length > most || (lists.length > 2 && answer.at_ns - lists[1].at_ns > WINDOW_NS)) lists.shift();
    },
    // {perSecond, rowsPerSecond, p50, p99} or null: there is no second answer yet.
    of(model, bounds) {
      const first = lists[0], last = lists[lists.length - 1];
      if (lists.length < 2 || model.requests === undefined) return null;
      const seconds = (last.at_ns - first.at_ns) / 1e9;
      const done = since(model, first.models.get(`${model.name}/${model.version}`));
      return {
        perSecond: done.requests / seconds,
        rowsPerSecond: done.rows / seconds,
        p50: quantile(done.durations, bounds, 0.5),
        p99: quantile(done.durations, bounds, 0.99),
      };
    },
  };
}

const LINE = /^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"/g;

// A list of {name, labels, value}.
export function parseMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = line[0] === "#" ? null : LINE.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, key, value] of (found[2] ?? "").matchAll(LABEL)) labels[key] = value.replace(/\\(.)/g, (_, c) => c === "n" ? "\n" : c);
    samples.push({name: found[1], labels, value: Number(found[3])});
  }
  return samples;
}

// The buckets of a histogram among samples, not added up any more: {bounds, counts, sum}.
export function histogram(samples, name, wanted) {
  const fits = (sample) => Object.entries(wanted).every(([key, value]) => sample.labels[key] === value);
  const buckets = samples.filter((sample) => sample.name === `${name}_bucket` && fits(sample));
  const sum = samples.find((sample) => sample.name === `${name}_sum` && fits(sample))?.value ?? 0;
  const bounds = buckets.map((sample) => Number(sample.labels.le.replace("+Inf", "Infinity")));
  const counts = buckets.map((sample, i) => sample.value - (i ? buckets[i - 1].value : 0));
  return {bounds: bounds.slice(0, -1), counts, sum};
}
