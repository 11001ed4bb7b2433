// Drawings: a popularity curve with the list on it, and a line over time. All text is set as text.
const SVG = "http://www.w3.org/2000/svg";

export function part(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Users of the items, most popular first, on a scale of logarithms; dots are ranks of listed items.
export function popularityCurve(curve, lists, room) {
  const width = Math.max(280, room), height = 190, left = 44, bottom = 26, top = 12;
  const svg = part("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const most = Math.max(1, ...curve);
  const x = (share) => left + share * (width - left - 12);
  const y = (users) => height - bottom - (Math.log1p(users) / Math.log1p(most)) * (height - bottom - top);
  const last = Math.max(1, curve.length - 1);
  const points = curve.map((users, n) => `${x(n / last).toFixed(1)},${y(users).toFixed(1)}`);
  if (points.length) {
    svg.append(part("polygon", { class: "area",
      points: `${x(0)},${height - bottom} ${points.join(" ")} ${x(1)},${height - bottom}` }));
    svg.append(part("polyline", { class: "line", points: points.join(" ") }));
  }
  svg.append(part("line", { class: "axis", x1: x(0.2), x2: x(0.2), y1: top, y2: height - bottom }));
  svg.append(part("text", { x: x(0.2) - 6, y: top + 8, "text-anchor": "end" }, "head"));
  svg.append(part("text", { x: x(0.2) + 6, y: top + 8 }, "tail"));
  svg.append(part("text", { x: left - 6, y: y(most) + 4, "text-anchor": "end" }, String(most)));
  svg.append(part("text", { x: left - 6, y: height - bottom, "text-anchor": "end" }, "0"));
  svg.append(part("text", { x: left, y: height - 6 }, "most users"));
  svg.append(part("text", { x: width - 12, y: height - 6, "text-anchor": "end" }, "fewest users"));
  const words = [];
  lists.forEach((list, which) => {
    let tail = 0;
    for (const item of list.items) {
      tail += item.tail ? 1 : 0;
      const share = shareOf(curve, item.users);
      const dot = part("circle", { class: which ? "dot-b" : "dot-a", cx: x(share).toFixed(1),
        cy: (y(item.users) + (which ? 6 : 0)).toFixed(1), r: 4.5 });
      dot.append(part("title", {}, item.title));
      svg.append(dot);
    }
    words.push(`${list.model}: ${tail} of ${list.items.length} items from the tail`);
  });
  svg.setAttribute("aria-label", words.join("; ") || "no list yet");
  return svg;
}

function shareOf(curve, users) {
  let low = 0;
  while (low < curve.length - 1 && curve[low + 1] >= users) low += 1;
  return low / Math.max(1, curve.length - 1);
}

export function sparkline(values, label) {
  const width = 240, height = 48;
  const svg = part("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const most = Math.max(1e-9, ...values);
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, n) =>
    `${(n * step).toFixed(1)},${(height - 3 - (value / most) * (height - 8)).toFixed(1)}`);
  svg.append(part("line", { class: "axis", x1: 0, x2: width, y1: height - 1, y2: height - 1 }));
  if (points.length > 1) svg.append(part("polyline", { class: "line", points: points.join(" ") }));
  return svg;
}
