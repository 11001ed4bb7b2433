// Charts: a popularity curve with the listed items on it, and lines over time. Text is never markup.
import { count, isolated } from "./elements.js";

const SVG = "http://www.w3.org/2000/svg";
const TEXT = 15; // pixels that a line of text needs

function svgElement(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function svgText(x, y, text, anchor = "start") {
  return svgElement("text", { x, y, "text-anchor": anchor }, text);
}

// A filled circle for the first list and an open diamond around it for the second.
function listMark(isSecond, x, y, className) {
  if (!isSecond) return svgElement("circle", { class: `dot ${className}`, cx: x.toFixed(1), cy: y.toFixed(1), r: 4 });
  const corners = [[0, -8], [8, 0], [0, 8], [-8, 0]];
  const points = corners.map(([right, down]) => `${(x + right).toFixed(1)},${(y + down).toFixed(1)}`).join(" ");
  return svgElement("polygon", { class: `diamond ${className}`, points });
}

// Users of each item, most used first, on a logarithmic scale; marks are the listed items.
export function popularityCurve(model, lists, availableWidth) {
  const { curve, items, head } = model;
  const width = Math.max(280, availableWidth), height = 250, left = 52, right = 12, bottom = 44, top = 40;
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const largest = Math.max(1, ...curve);
  const x = (share) => left + share * (width - left - right);
  const y = (users) => height - bottom - (Math.log1p(users) / Math.log1p(largest)) * (height - bottom - top);
  const last = Math.max(1, curve.length - 1);
  const points = curve.map((users, n) => `${x(n / last).toFixed(1)},${y(users).toFixed(1)}`);
  if (points.length) {
    svg.append(svgElement("polygon", { class: "area",
      points: `${x(0)},${height - bottom} ${points.join(" ")} ${x(1)},${height - bottom}` }));
    svg.append(svgElement("polyline", { class: "line", points: points.join(" ") }));
  }
  const ticks = [largest, 0];
  for (let users = 1; users < largest; users *= 10) ticks.push(users);
  const labelled = [];
  for (const users of ticks) {
    if (labelled.some((other) => Math.abs(other - y(users)) < TEXT)) continue;
    labelled.push(y(users));
    svg.append(svgElement("line", { class: "axis", x1: left - 5, x2: width - right, y1: y(users), y2: y(users) }));
    svg.append(svgText(left - 8, y(users) + 4, count(users), "end"));
  }
  svg.append(svgText(4, 14, "users of an item, logarithmic scale"));
  const border = Math.max(0, (head - 0.5) / Math.max(1, items - 1));
  svg.append(svgElement("line", { class: "border", x1: x(border), x2: x(border), y1: top - 14, y2: height - bottom }));
  svg.append(svgElement("text", { x: x(border) - 6, y: top - 6, "text-anchor": "end", class: "head" }, "head"));
  svg.append(svgElement("text", { x: x(border) + 6, y: top - 6, class: "tail" }, "tail"));
  svg.append(svgText(left, height - bottom + 16, "1"));
  svg.append(svgText(x(border), height - bottom + 16, count(head), "middle"));
  svg.append(svgText(width - right, height - bottom + 16, count(items), "end"));
  svg.append(svgText((left + width - right) / 2, height - 8, "rank of the item by users", "middle"));
  const labels = [];
  lists.forEach((list, index) => {
    let tail = 0;
    for (const item of list.items) {
      tail += item.tail ? 1 : 0;
      const mark = listMark(index > 0, x(rankShare(curve, item.users)), y(item.users), item.tail ? "tail" : "head");
      mark.append(svgElement("title", {}, `${isolated(item.title)}, ${count(item.users)} users, ${list.name}`));
      svg.append(mark);
    }
    labels.push(`${list.name}: ${tail} of ${list.items.length} items from the tail`);
  });
  svg.setAttribute("aria-label", labels.join("; ") || "no lists yet");
  return svg;
}

function rankShare(curve, users) {
  let low = 0;
  while (low < curve.length - 1 && curve[low + 1] >= users) low += 1;
  return low / Math.max(1, curve.length - 1);
}

function roundUp(number) {
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 5, 10].find((step) => step * power >= number * (1 - 1e-9)) * power;
}

export function clock(time, hasSeconds) {
  return new Date(1000 * time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false,
    ...(hasSeconds ? { second: "2-digit" } : {}) });
}

// Lines over time. A series has a name and points of time and value; a value of null is a gap.
export function lineChart(series, { from, to, format, label, width: availableWidth }) {
  const width = Math.max(220, availableWidth), height = 140, left = 46, right = 8, bottom = 22, top = 8;
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const values = series.flatMap(({ points }) => points.map((point) => point.value)).filter((value) => value !== null);
  const largest = roundUp(Math.max(1e-3, ...values));
  const x = (time) => left + (time - from) / Math.max(1e-9, to - from) * (width - left - right);
  const y = (value) => height - bottom - value / largest * (height - bottom - top);
  for (const value of [0, largest / 2, largest]) {
    svg.append(svgElement("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    svg.append(svgText(left - 6, y(value) + 4, format(value), "end"));
  }
  const hasSeconds = to - from < 300;
  const anchors = ["start", "middle", "end"];
  [from, (from + to) / 2, to].forEach((time, n) => {
    svg.append(svgElement("line", { class: "axis", x1: x(time), x2: x(time), y1: height - bottom, y2: height - bottom + 4 }));
    svg.append(svgText(x(time), height - 5, clock(time, hasSeconds), anchors[n]));
  });
  series.forEach(({ points }, n) => {
    for (const line of unbroken(points)) {
      const places = line.map((point) => `${x(point.time).toFixed(1)},${y(point.value).toFixed(1)}`);
      if (places.length > 1) svg.append(svgElement("polyline", { class: `line series-${n % 4}`, points: places.join(" ") }));
      else svg.append(svgElement("circle", { class: "point", cx: x(line[0].time), cy: y(line[0].value), r: 2 }));
    }
  });
  return svg;
}

function unbroken(points) {
  const lines = [[]];
  for (const point of points) {
    if (point.value === null) lines.push([]);
    else lines[lines.length - 1].push(point);
  }
  return lines.filter((line) => line.length);
}

// A short piece of the line of a series, for a legend.
export function lineSample(n) {
  const svg = svgElement("svg", { viewBox: "0 0 28 8", class: "sample", "aria-hidden": "true" });
  svg.append(svgElement("line", { class: `line series-${n % 4}`, x1: 0, x2: 28, y1: 4, y2: 4 }));
  return svg;
}
