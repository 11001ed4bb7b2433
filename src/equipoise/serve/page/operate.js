// The view for operators: traffic over time, models, drift, the experiment and the trend.
// Text from the service is never inserted as markup.
import { clock, lineChart, lineSample } from "./charts.js";
import { byId, count, createElement, duration, isolatedText, partMark, percent, request, withErrors } from "./elements.js";

const TRAFFIC_PAUSE = 2, FACTS_PAUSE = 30; // seconds
const POINTS = 240; // of a line
let samples = [], factsTime = 0, timer = 0, models = [];

// ---- numbers over time -------------------------------------------------------------------------

const range = () => Number(byId("range").value);
const sum = (group) => Object.values(group).reduce((total, value) => total + value, 0);

const gap = () => range() / POINTS;

// Drop what is older than the range, and what lies closer together than a line can show.
function thinned(all) {
  const last = all[all.length - 1];
  const recent = all.filter((sample) => sample.time >= last.time - range());
  return recent.filter((sample, n) => n === 0 || n === recent.length - 1 ||
    Math.floor(sample.time / gap()) !== Math.floor(recent[n - 1].time / gap()));
}

// A point for each sample, from the counts since the last sample that is a gap older.
function pointsOf(figure) {
  return samples.slice(1).map((sample, n) => {
    let from = n;
    while (from > 0 && sample.time - samples[from].time < gap()) from -= 1;
    return { time: sample.time, value: figure(samples[from], sample) };
  });
}

// The counts between two samples, of the keys that count.
function increase(before, now, name, isCounted = () => true) {
  const keys = Object.keys(now[name]).filter(isCounted);
  return keys.reduce((total, key) => total + now[name][key] - (before[name][key] || 0), 0);
}

// The share of a part in all counts of a model, whose keys are such as "dan popular".
const partOf = (name, part) => (model) => (before, now) => {
  const total = increase(before, now, name, (key) => key.startsWith(`${model} `));
  return total > 0 ? increase(before, now, name, (key) => key === `${model} ${part}`) / total : null;
};
const tailOf = partOf("shown", "tail"), popularOf = partOf("lists", "popular");
const coverageOf = (model) => (_, now) => (model in now.coverage ? now.coverage[model] : null);
const rateOf = (name, isCounted) => (before, now) =>
  increase(before, now, name, isCounted) / Math.max(1e-3, now.time - before.time);

// Milliseconds that a share of the requests between two samples took at most.
function quantile(before, now, share) {
  const edges = Object.keys(now.buckets).map((edge) => [edge === "+Inf" ? Infinity : Number(edge), edge]).sort((a, b) => a[0] - b[0]);
  const counts = edges.map(([, edge]) => now.buckets[edge] - (before.buckets[edge] || 0));
  const total = counts.length ? counts[counts.length - 1] : 0;
  if (total <= 0) return null;
  const place = counts.findIndex((number) => number >= share * total);
  const low = place > 0 ? counts[place - 1] : 0, high = counts[place];
  const from = place > 0 ? edges[place - 1][0] : 0;
  const to = Number.isFinite(edges[place][0]) ? edges[place][0] : from;
  return 1000 * (from + (to - from) * (share * total - low) / Math.max(1e-12, high - low));
}

// Cards: title, format, whether figures are shares, and lines of a name and a figure between two samples.
function cards() {
  const each = (figure) => models.map((model) => [model.name, figure(model.name)]);
  const rate = (value) => (value < 10 ? value.toFixed(1) : count(Math.round(value)));
  const digits = (value) => (value < 10 ? String(Number(value.toPrecision(2))) : count(Math.round(value)));
  const share = (value) => percent(value, value < 0.0995 && value > 0 ? 1 : 0);
  return [
    ["Requests per second", rate, false, [["all", rateOf("requests")], ["refused or failed", rateOf("requests", (status) => status >= "400")]]],
    ["Time to answer, ms", digits, false, [["median", (before, now) => quantile(before, now, 0.5)],
      ["99th percentile", (before, now) => quantile(before, now, 0.99)]]],
    ["Events per second", rate, false, [["all", rateOf("events")]]],
    ["Items listed from the tail", share, true, each(tailOf)],
    ["Catalogue coverage", share, true, each(coverageOf)],
    ["Lists by popularity, as nothing is known of the user", share, true, each(popularOf)],
  ];
}

function drawTraffic() {
  const first = samples[0], last = samples[samples.length - 1];
  const hasTimes = samples.length > 1;
  byId("range-about").textContent = hasTimes
    ? `From ${clock(first.time, true)} to ${clock(last.time, true)}, over all workers. Figures beside names: now; shares: over this time.`
    : "Waiting for a second measurement.";
  const width = byId("cards").clientWidth;
  const columns = Math.max(1, Math.floor((width + 16) / 336));
  const chartWidth = (width - 16 * (columns - 1)) / columns - 34;
  byId("cards").replaceChildren(...cards().map(([title, format, isShare, series]) => {
    const drawn = series.map(([name, figure]) => ({ name, figure, points: pointsOf(figure) }));
    const legend = createElement("ul", { className: "legend" }, ...drawn.map(({ name, figure, points }, n) => {
      const value = !hasTimes ? null : isShare ? figure(first, last) : points[points.length - 1].value;
      return createElement("li", {}, lineSample(n), ` ${name} `, createElement("strong", { textContent: value === null ? "-" : format(value) }));
    }));
    const label = `${title}: ${[...legend.children].map((entry) => entry.textContent.trim()).join(", ")}`;
    return createElement("div", { className: "card" }, createElement("h3", { textContent: title }), legend,
      ...(hasTimes ? [lineChart(drawn, { from: first.time, to: last.time, format, label, width: chartWidth })] : []));
  }));
}

async function measureTraffic(past) {
  const { past: earlier, ...now } = await request(`v1/admin/overview${past ? `?past=${past}` : ""}`);
  if (samples.length && sum(now.requests) < sum(samples[samples.length - 1].requests)) samples = []; // started anew
  const known = new Set(samples.map((sample) => sample.time));
  samples = [...samples, ...earlier.filter((sample) => !known.has(sample.time)), now].sort((a, b) => a.time - b.time);
  samples = thinned(samples);
  return now;
}

// ---- tables ------------------------------------------------------------------------------------

function fillTable(name, rows) {
  byId(name).tBodies[0].replaceChildren(...rows.map((cells) => createElement("tr", {}, ...cells.map((cell, n) =>
    createElement(n ? "td" : "th", n ? {} : { scope: "row" }, cell instanceof Node ? cell : String(cell))))));
}

const shareOrDash = (share, digits) => (share === null || share === undefined ? "-" : percent(share, digits));

function age(time) {
  const hours = (Date.now() / 1000 - time) / 3600;
  if (hours < 1) return `${Math.max(0, Math.round(60 * hours))} min ago`;
  return hours < 48 ? `${hours.toFixed(1)} h ago` : `${(hours / 24).toFixed(0)} days ago`;
}

function drawModels(now) {
  const first = samples[0];
  fillTable("models-table", models.map((model) => [
    model.name, model.summary, model.version, count(model.items), count(model.users), age(model.fitted),
    count(increase(first, now, "lists", (key) => key.startsWith(`${model.name} `))),
    shareOrDash(popularOf(model.name)(first, now), 0), shareOrDash(tailOf(model.name)(first, now), 0),
    shareOrDash(coverageOf(model.name)(first, now), 1),
  ]));
  byId("forecasts").replaceChildren(...models.filter((model) => model.forecast).map((model) => {
    const figures = Object.entries(model.forecast.values).map(([metric, figure]) => `${metric} ${figure.value.toFixed(4)}` +
      ("low" in figure ? ` [${figure.low.toFixed(4)}, ${figure.high.toFixed(4)}]` : ""));
    const yardsticks = Object.entries(model.forecast.yardsticks).map(([name, value]) => `${name} ${value.toFixed(4)}`);
    const parts = [`${model.name}, to expect after its data: ${figures.join(", ")}`, yardsticks.join(", "), model.forecast.verdict];
    return createElement("li", { textContent: parts.filter(Boolean).join("; ") });
  }));
  byId("store").textContent = now.store
    ? `Store: ${count(now.store.events)} events, ${count(now.store.seen)} seen marks, ${count(now.store.lists)} recorded lists.`
    : "The store does not answer.";
}

// The usual reading of a population stability index: below 0.1 none, above 0.25 a large shift.
function shift(index) {
  if (index === null) return "- (too few events)";
  return `${index.toFixed(3)}, ${index < 0.1 ? "none" : index <= 0.25 ? "moderate" : "large"}`;
}

function drawDrift(now) {
  const measured = models.filter((model) => model.name in now.drift_events);
  const withEvents = measured.filter((model) => now.drift_events[model.name] > 0);
  byId("drift").hidden = !withEvents.length;
  byId("drift-about").textContent = withEvents.length
    ? "The latest events against the data of each fit, measured every five minutes. Shift: population stability index of " +
      "the popularity of items. Lists as at the fit: share of the items of users' lists now that their lists at the fit had."
    : measured.length ? "Nothing found: the store has no events yet." : "Not measured yet: the first time is five minutes after the start.";
  fillTable("drift-table", withEvents.map(({ name }) => [
    name, count(now.drift_events[name]), shareOrDash(now.drift_unknown[`${name} item`], 1),
    shareOrDash(now.drift_unknown[`${name} user`], 1), shift(now.drift_popularity[name]), shareOrDash(now.drift_overlap[name], 0),
  ]));
}

async function drawExperiment() {
  const answer = await request("v1/admin/experiment");
  byId("experiment").textContent = answer.experiment === null ? "" : `Experiment ${answer.experiment}`;
  byId("comparison").hidden = !answer.models.length;
  byId("experiment-how").textContent = answer.how;
  if (!answer.models.length) return;
  const expected = answer.shares.expected || {};
  fillTable("experiment-table", answer.models.map((model) => [
    model.model, shareOrDash(expected[model.model], 0), count(model.users), count(model.lists), count(model.clicked),
    shareOrDash(model.rate, 1),
  ]));
  const end = (value) => (value === null ? "?" : `${value < 0 ? "−" : "+"}${percent(Math.abs(value), 1)}`);
  const verdicts = answer.tests.map((test) => [`${test.model} against ${test.baseline}`,
    `${test.verdict} (difference ${end(test.difference)}, 95% interval ${end(test.low)} to ${end(test.high)}, p ${test.p_adjusted.toPrecision(2)})`]);
  verdicts.push(["Sample ratio", answer.shares.verdict + (answer.shares.p === null ? "" : ` (p ${answer.shares.p.toPrecision(2)})`)]);
  if (answer.switched_users) verdicts.push(["Left out", `${count(answer.switched_users)} users who saw several models`]);
  byId("verdicts").replaceChildren(...verdicts.map(([name, text]) =>
    createElement("li", {}, createElement("strong", { textContent: `${name}: ` }), text)));
}

async function drawTrend() {
  const model = models.find((candidate) => candidate.half_life !== null);
  byId("trend").hidden = !model;
  if (!model) return;
  const answer = await request(`v1/trending?k=10&model=${encodeURIComponent(model.name)}`);
  const date = answer.time === null ? "" : new Date(1000 * answer.time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  byId("trend-about").textContent = answer.items.length
    ? `Items with the most recent users, for ${model.name}: a use ${duration(answer.half_life)} before the last one (${date}) counts half.`
    : "Nothing found: no item has been used lately.";
  fillTable("trend-table", answer.items.map((item) =>
    [isolatedText(item.title), item.recent_users.toFixed(1), count(item.users), partMark(item.tail)]));
}

// ---- refreshing --------------------------------------------------------------------------------

async function refresh(past) {
  const isDue = Date.now() - factsTime > 1000 * FACTS_PAUSE;
  if (isDue) {
    factsTime = Date.now();
    models = (await request("v1/models")).models;
  }
  const now = await measureTraffic(past);
  drawTraffic();
  drawModels(now);
  drawDrift(now);
  if (isDue) await Promise.all([drawExperiment(), drawTrend()]);
}

export function startOperating() {
  stopOperating();
  factsTime = 0;
  withErrors(() => refresh(range()));
  timer = setInterval(() => withErrors(refresh), 1000 * TRAFFIC_PAUSE);
}

export function stopOperating() {
  clearInterval(timer);
}

byId("range").addEventListener("change", () => withErrors(() => refresh(range())));
