// Makes the text of a request from the fields of the form. Whole numbers are sent as they are typed, because a Number
// would change those beyond 2^53.

export class Mistake extends Error {}

const MOST_SIGNED = 2n ** 63n - 1n, LEAST_SIGNED = -(2n ** 63n), MOST = 2n ** 64n - 1n;

function split(text) {
  return text.split(/[\s,;]+/).filter(Boolean);
}

// Texts of whole numbers of 64 bits.
export function integers(name, text) {
  return split(text.replace(/^\s*\[|\]\s*$/g, "")).map((word, i) => {
    const at = `'${name}' at position ${i} is '${word}'`;
    if (!/^[+-]?\d+$/.test(word)) throw new Mistake(`${at}; it must be a whole number`);
    const value = BigInt(word.replace(/^\+/, ""));
    if (value > MOST || value < LEAST_SIGNED) throw new Mistake(`${at}; it must fit in 64 bits`);
    return value.toString();
  });
}

export function floats(name, text) {
  return split(text.replace(/^\s*\[|\]\s*$/g, "")).map((word, i) => {
    if (/^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(word) || /^(NaN|-?Infinity)$/.test(word)) return word;
    const value = Number(word);
    if (!Number.isFinite(value)) throw new Mistake(`'${name}' at position ${i} is '${word}'; it must be a number`);
    return String(value);
  });
}

// Keys from 2^63 on are UINT64; both types cannot be had at once.
function typeOf(name, values) {
  const isLarge = values.some((value) => BigInt(value) > MOST_SIGNED);
  if (isLarge && values.some((value) => BigInt(value) < 0n)) {
    throw new Mistake(`'${name}' has numbers below 0 and from 2^63 on, which no type holds together`);
  }
  return isLarge ? "UINT64" : "INT64";
}

function tensor(name, datatype, values) {
  return `{"name": ${JSON.stringify(name)}, "datatype": "${datatype}", "shape": [${values.length}], "data": [${values.join(", ")}]}`;
}

// The inputs of one table: `fields` has the typed indices, offsets and weights; `prefix` is "" or "FEATURE.".
export function inputsOf(fields, prefix, weightType) {
  const indices = integers(`${prefix}indices`, fields.indices);
  const offsets = integers(`${prefix}offsets`, fields.offsets);
  const weights = floats(`${prefix}weights`, fields.weights);
  const inputs = [tensor(`${prefix}indices`, typeOf(`${prefix}indices`, indices), indices),
    tensor(`${prefix}offsets`, "INT64", offsets.length ? offsets : ["0"])];
  if (weights.length) inputs.push(tensor(`${prefix}per_sample_weights`, weightType, weights));
  return inputs;
}

// The request; `parameters` are values of JSON.
export function requestOf(inputs, parameters) {
  const names = Object.keys(parameters);
  const last = names.length ? `,\n  "parameters": ${JSON.stringify(parameters).replaceAll('":', '": ').replaceAll(',"', ', "')}` : "";
  return `{"inputs": [\n    ${inputs.join(",\n    ")}]${last}}`;
}

// Reads the answer. The numbers under "data" stay texts, because JSON has no NaN and JavaScript has no whole numbers of
// 64 bits. Other values are those of JSON.
export function readAnswer(text) {
  const quoted = text.replace(/"(?:[^"\\]|\\.)*"|-?(?:Infinity|NaN|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/g, (word) =>
    word[0] === '"' || String(Number(word)) === word ? word : `"\\u0000${word}"`);
  return JSON.parse(quoted, (key, value) => typeof value === "string" && value[0] === "\u0000"
    ? (key !== "" && isNaN(key) ? Number(value.slice(1)) : value.slice(1)) : value);
}

// A flat list in the shape that it has, as JSON with each row of numbers on a line.
export function nested(data, shape) {
  const depth = shape.length;
  function part(first, length, level) {
    if (level === depth) return String(data[first]);
    const size = length / shape[level] || 0;
    const parts = Array.from({length: shape[level]}, (_, i) => part(first + i * size, size, level + 1));
    return `[${parts.join(level < depth - 1 ? ",\n".padEnd(3 + level) : ", ")}]`;
  }
  return part(0, data.length, 0);
}
