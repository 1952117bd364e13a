// Numbers for people.

const NONE = "–";

function significant(value, digits = 3) {
  if (value === 0) return "0";
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", {maximumFractionDigits: Math.min(places, 6), useGrouping: true});
}

function isKnown(value) {
  return value !== null && value !== undefined && Number.isFinite(value);
}

// 1,234 and 1.23 M.
export function count(value) {
  if (!isKnown(value)) return NONE;
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e5, "k"]]) {
    if (value >= limit) return `${significant(value / (unit === "k" ? 1e3 : limit))} ${unit}`;
  }
  return Number.isInteger(value) ? value.toLocaleString("en") : significant(value);
}

// All digits: 1,234,567.
export function exact(value) {
  return isKnown(value) ? value.toLocaleString("en", {maximumFractionDigits: 6}) : NONE;
}

export function rate(value) {
  return isKnown(value) ? `${count(value)}/s` : NONE;
}

export function bytes(value) {
  if (!isKnown(value)) return NONE;
  for (const [limit, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= limit) return `${significant(value / limit)} ${unit}`;
  }
  return `${value} B`;
}

// Nanoseconds.
export function duration(ns) {
  if (!isKnown(ns)) return NONE;
  for (const [limit, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (ns >= limit) return `${significant(ns / limit)} ${unit}`;
  }
  return ns > 0 && ns < 1 ? "below 1 ns" : `${Math.round(ns)} ns`;
}

export function percent(part, whole) {
  if (!isKnown(part) || !whole) return NONE;
  return part > 0 && part < whole / 1000 ? "below 0.1 %" : `${significant(100 * part / whole, 2)} %`;
}

// "3 days 4 h", of seconds.
export function span(seconds) {
  const days = Math.floor(seconds / 86400), hours = Math.floor(seconds / 3600) % 24;
  const minutes = Math.floor(seconds / 60) % 60;
  if (days) return `${days} ${days === 1 ? "day" : "days"} ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min` : `${Math.max(0, Math.floor(seconds))} s`;
}

export function clock(ms, seconds = false) {
  return new Date(ms).toLocaleTimeString([], {hourCycle: "h23", hour: "2-digit", minute: "2-digit", ...(seconds && {second: "2-digit"})});
}

export function moment(ms) {
  return ms ? new Date(ms).toLocaleString() : "never";
}

export function plural(number, one, many = `${one}s`) {
  return `${exact(number)} ${number === 1 ? one : many}`;
}

export {NONE};
