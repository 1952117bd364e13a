// Vectors as a small picture: a cell for each number, blue below zero and orange above, the stronger the larger.
import {h, svg} from "./dom.js";
import {exact, plural} from "./format.js";

const MOST_BAGS = 32, MOST_NUMBERS = 256, WIDTH = 512;

function strength(value, most) {
  return most ? Math.min(1, Math.abs(value) / most) : 0;
}

function cell(value, most, x, y, size) {
  const rect = svg("rect", {x: x * size, y: y * size, width: size - 1, height: size - 1,
    class: value < 0 ? "below" : "above", "fill-opacity": (0.06 + 0.94 * strength(value, most)).toFixed(3)});
  rect.append(svg("title"));
  rect.firstChild.textContent = `${x}: ${value}`;
  return rect;
}

// Draws an output's numbers, row by row.
export function picture(name, data, bags) {
  const columns = bags ? data.length / bags : 0;
  const shownBags = Math.min(bags, MOST_BAGS), shownColumns = Math.min(columns, MOST_NUMBERS);
  if (!shownBags || !shownColumns) return null;
  const size = Math.max(8, Math.min(18, Math.floor(WIDTH / shownColumns)));
  const values = data.map(Number), finite = values.filter(Number.isFinite);
  const most = finite.reduce((max, value) => Math.max(max, Math.abs(value)), 0);
  const least = finite.reduce((a, b) => Math.min(a, b), Infinity), largest = finite.reduce((a, b) => Math.max(a, b), -Infinity);
  const image = svg("svg", {viewBox: `0 0 ${shownColumns * size} ${shownBags * size}`, role: "img",
    width: shownColumns * size, height: shownBags * size,
    "aria-label": `${name}: ${plural(bags, "bag")} of ${plural(columns, "number")}` +
      (finite.length ? `, from ${exact(least)} to ${exact(largest)}` : "")});
  for (let bag = 0; bag < shownBags; bag++) {
    for (let i = 0; i < shownColumns; i++) image.append(cell(values[bag * columns + i], most, i, bag, size));
  }
  const left = shownBags < bags || shownColumns < columns
    ? `The first ${plural(shownBags, "bag")} and ${plural(shownColumns, "number")} of each. ` : "";
  return h("figure", {}, h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": `Picture of ${name}`}, image),
    h("figcaption", {class: "note"}, `${left}A line is a bag, a cell a number: `, h("span", {class: "key below"}), " below zero, ",
      h("span", {class: "key above"}), ` above; the strongest is ${exact(most)}.`));
}
