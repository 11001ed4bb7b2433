// The page: a history on one side, lists on the other, and numbers for the operator. Whatever comes
// from the service is put into the page as text, never as markup.
import { popularityCurve, sparkline } from "./charts.js";

const byId = (id) => document.getElementById(id);
const state = { history: [], user: null, models: [], lists: [], alphaMoved: false, asked: 0, samples: [] };

function make(name, properties, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (key in made) made[key] = value; else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

async function ask(path, body, method) {
  const headers = {};
  const token = sessionStorage.getItem("equipoise-token");
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(path, { method: method || (body === undefined ? "GET" : "POST"), headers,
    body: body === undefined ? undefined : JSON.stringify(body) });
  const found = await answer.json();
  if (!answer.ok) {
    if (answer.status === 401 || answer.status === 403) byId("token-form").hidden = false;
    throw new Error(found.detail || answer.statusText);
  }
  return found;
}

function say(error) {
  const place = byId("message");
  place.hidden = !error;
  place.textContent = error ? error.message : "";
}

async function guarded(work) {
  try { const found = await work(); say(null); return found; } catch (error) { say(error); return null; }
}

function later(work, pause) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(() => guarded(work), pause); };
}

// ---- the history -------------------------------------------------------------------------------

function addItem(item) {
  if (state.user !== null) { state.user = null; byId("user").value = ""; }
  if (!state.history.some((each) => each.item === item.item)) state.history.push(item);
  historyChanged();
}

function historyChanged() {
  const list = byId("history");
  list.replaceChildren(...state.history.map((each) => {
    const remove = make("button", { type: "button", textContent: "×" });
    remove.setAttribute("aria-label", `Remove ${each.title}`);
    remove.addEventListener("click", () => {
      state.user = null;
      state.history = state.history.filter((other) => other.item !== each.item);
      historyChanged();
      byId("search").focus();
    });
    return make("li", {}, make("span", { textContent: each.title }), remove);
  }));
  const items = `${state.history.length} item${state.history.length === 1 ? "" : "s"}`;
  byId("whose").textContent = state.user === null
    ? (state.history.length ? items : "Add items, or choose a user. Without any, popular items are listed.")
    : `User ${state.user}: ${items}`;
  guarded(recommend);
}

async function showUser() {
  const user = byId("user").value.trim();
  if (!user) return;
  const found = await ask(`v1/users/${encodeURIComponent(user)}`);
  state.user = user;
  state.history = found.items;
  historyChanged();
}

// ---- search: a combobox with a list ------------------------------------------------------------

let choices = [], chosen = -1;

async function search() {
  const text = byId("search").value.trim();
  if (!text) { showChoices([]); return; }
  const found = await ask(`v1/items?limit=8&q=${encodeURIComponent(text)}`);
  if (byId("search").value.trim() === text) showChoices(found.items);
}

function showChoices(items) {
  choices = items;
  chosen = -1;
  const list = byId("found"), box = byId("search");
  list.replaceChildren(...items.map((item, n) => {
    const option = make("li", { id: `found-${n}`, textContent: item.title });
    option.setAttribute("role", "option");
    option.setAttribute("aria-selected", "false");
    option.addEventListener("mousedown", (event) => { event.preventDefault(); take(n); });
    return option;
  }));
  list.hidden = !items.length;
  box.setAttribute("aria-expanded", String(items.length > 0));
  box.removeAttribute("aria-activedescendant");
}

function choose(n) {
  const list = byId("found").children;
  if (!list.length) return;
  if (chosen >= 0) list[chosen].setAttribute("aria-selected", "false");
  chosen = (n + list.length) % list.length;
  list[chosen].setAttribute("aria-selected", "true");
  list[chosen].scrollIntoView({ block: "nearest" });
  byId("search").setAttribute("aria-activedescendant", `found-${chosen}`);
}

function take(n) {
  const item = choices[n];
  byId("search").value = "";
  showChoices([]);
  if (item) addItem(item);
}

function searchKey(event) {
  if (event.key === "ArrowDown") { choose(chosen + 1); event.preventDefault(); }
  else if (event.key === "ArrowUp") { choose(chosen < 0 ? -1 : chosen - 1); event.preventDefault(); }
  else if (event.key === "Enter" && choices.length) { take(Math.max(chosen, 0)); event.preventDefault(); }
  else if (event.key === "Escape") showChoices([]);
}

// ---- lists -------------------------------------------------------------------------------------

function wantedModels() {
  const names = [byId("model-a").value];
  if (byId("model-b").value && byId("model-b").value !== names[0]) names.push(byId("model-b").value);
  return names.map((name) => state.models.find((each) => each.name === name)).filter(Boolean);
}

async function recommend() {
  const number = ++state.asked;
  const models = wantedModels();
  const lists = await Promise.all(models.map((model) => {
    const body = { k: Number(byId("length").value), model: model.name, explain: model.explains ? 3 : 0 };
    if (state.user !== null) body.user = state.user;
    else body.history = state.history.map((each) => each.item);
    if (state.alphaMoved && model.alpha !== null) body.alpha = Number(byId("alpha").value);
    return ask("v1/recommend", body);
  }));
  if (number !== state.asked) return;
  state.lists = lists;
  byId("lists").replaceChildren(...lists.map(drawList));
  byId("curve").replaceChildren(popularityCurve(models[0] ? models[0].curve : [], lists, byId("curve").clientWidth));
  byId("status").textContent = lists.map((list) => {
    const tail = list.items.filter((item) => item.tail).length;
    return `${list.model}: ${list.items.length} items, ${tail} from the tail` +
      (list.source === "popular" ? ", by popularity" : "");
  }).join("; ");
}

function drawList(list) {
  const most = Math.max(1e-12, ...list.items.flatMap((item) => (item.reasons || []).map((r) => Math.abs(r.contribution))));
  const rows = make("ol", {}, ...list.items.map((item) => {
    const title = make("button", { type: "button", className: "title", textContent: item.title });
    title.setAttribute("aria-label", `${item.title}: show similar items`);
    title.addEventListener("click", () => guarded(() => showSimilar(item, list.model)));
    const mark = make("span", { className: item.tail ? "mark tail" : "mark head", textContent: item.tail ? "tail" : "head",
      title: `${item.users} users` });
    const add = make("button", { type: "button", textContent: "+" });
    add.setAttribute("aria-label", `Add ${item.title} to the history`);
    add.addEventListener("click", () => addItem(item));
    const row = make("li", {}, title, make("span", {}, mark, " ", add));
    if (item.reasons && item.reasons.length) row.append(drawReasons(item.reasons, most));
    return row;
  }));
  const about = `${list.model}, version ${list.version}` + (list.alpha === null ? "" : `, alpha ${list.alpha.toFixed(2)}`);
  const made = make("div", {}, make("h3", { textContent: about }), rows);
  rows.setAttribute("aria-label", `Items of ${list.model}`);
  return made;
}

function drawReasons(reasons, most) {
  return make("dl", { className: "reasons" }, ...reasons.map((reason) => {
    const bar = make("span", { className: reason.contribution < 0 ? "bar against" : "bar" });
    bar.style.width = `${(100 * Math.abs(reason.contribution) / most).toFixed(1)}%`;
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", `adds ${reason.contribution.toPrecision(2)}`);
    return make("div", {}, make("dt", { textContent: `because of ${reason.title}` }), make("dd", {}, bar));
  }));
}

async function showSimilar(item, model) {
  const found = await ask(`v1/similar?k=10&item=${encodeURIComponent(item.item)}&model=${encodeURIComponent(model)}`);
  byId("similar-title").textContent = `Similar to ${found.title}`;
  byId("similar-list").replaceChildren(...found.items.map((each) => {
    const add = make("button", { type: "button", textContent: "+" });
    add.setAttribute("aria-label", `Add ${each.title} to the history`);
    add.addEventListener("click", () => addItem(each));
    const mark = make("span", { className: each.tail ? "mark tail" : "mark head", textContent: each.tail ? "tail" : "head" });
    return make("li", {}, make("span", { textContent: each.title }), make("span", {}, mark, " ", add));
  }));
  byId("similar").hidden = false;
  byId("similar-title").focus();
}

// ---- the operator's view -----------------------------------------------------------------------

function quantile(before, now, share) {
  const edges = Object.keys(now).map((edge) => [edge === "+Inf" ? Infinity : Number(edge), edge]).sort((a, b) => a[0] - b[0]);
  const counts = edges.map(([, edge]) => now[edge] - (before[edge] || 0));
  const total = counts.length ? counts[counts.length - 1] : 0;
  if (total <= 0) return 0;
  const place = counts.findIndex((count) => count >= share * total);
  const low = place > 0 ? counts[place - 1] : 0, high = counts[place];
  const from = place > 0 ? edges[place - 1][0] : 0;
  const to = Number.isFinite(edges[place][0]) ? edges[place][0] : from;
  return 1000 * (from + (to - from) * (share * total - low) / Math.max(1e-12, high - low));
}

const sum = (group) => Object.values(group).reduce((total, value) => total + value, 0);
const sumOf = (group, end) => Object.entries(group).filter(([key]) => key.endsWith(end)).reduce((t, [, v]) => t + v, 0);

async function overview() {
  const now = await ask("v1/admin/overview");
  state.samples.push(now);
  if (state.samples.length > 120) state.samples.shift();
  const rows = state.samples.slice(1).map((each, n) => {
    const before = state.samples[n];
    const seconds = Math.max(0.001, each.time - before.time);
    const shown = sum(each.shown) - sum(before.shown), lists = sum(each.lists) - sum(before.lists);
    return {
      rate: (sum(each.requests) - sum(before.requests)) / seconds,
      p50: quantile(before.buckets, each.buckets, 0.5),
      p99: quantile(before.buckets, each.buckets, 0.99),
      events: (sum(each.events) - sum(before.events)) / seconds,
      popular: lists > 0 ? (sumOf(each.lists, " popular") - sumOf(before.lists, " popular")) / lists : 0,
      tail: shown > 0 ? (sumOf(each.shown, " tail") - sumOf(before.shown, " tail")) / shown : 0,
      coverage: Math.max(0, ...Object.values(each.coverage)),
    };
  });
  const last = rows[rows.length - 1];
  const cards = [
    ["Requests a second", "rate", (v) => v.toFixed(1)],
    ["Median time, ms", "p50", (v) => v.toFixed(1)],
    ["99th percentile, ms", "p99", (v) => v.toFixed(1)],
    ["Events a second", "events", (v) => v.toFixed(1)],
    ["Lists by popularity", "popular", (v) => `${(100 * v).toFixed(0)}%`],
    ["Items shown from the tail", "tail", (v) => `${(100 * v).toFixed(0)}%`],
    ["Catalogue shown", "coverage", (v) => `${(100 * v).toFixed(1)}%`],
  ];
  byId("cards").replaceChildren(...cards.map(([name, key, words]) => {
    const text = last ? words(last[key]) : "-";
    return make("div", { className: "card" }, make("h3", { textContent: name }), make("strong", { textContent: text }),
      sparkline(rows.map((row) => row[key]), `${name} over time, now ${text}`));
  }));
  byId("store").textContent = now.store
    ? `Store: ${now.store.events} events, ${now.store.seen} seen marks, ${now.store.lists} recorded lists.`
    : "The store does not answer.";
}

async function drawModels() {
  const found = await ask("v1/models");
  state.models = found.models;
  const age = (time) => {
    const hours = (Date.now() / 1000 - time) / 3600;
    if (hours < 1) return `${Math.round(60 * hours)} min ago`;
    return hours < 48 ? `${hours.toFixed(1)} h ago` : `${(hours / 24).toFixed(0)} days ago`;
  };
  byId("models-table").tBodies[0].replaceChildren(...found.models.map((each) => make("tr", {}, ...[
    each.name, each.summary, each.version, each.items, each.users, age(each.fitted), `${(100 * each.shown).toFixed(1)}%`,
  ].map((text) => make("td", { textContent: String(text) })))));
  byId("experiment").textContent = found.experiment === null ? "No experiment is running."
    : `Experiment ${found.experiment.name}: ` + Object.entries(found.experiment.shares)
      .map(([name, share]) => `${name} ${(100 * share).toFixed(0)}%`).join(", ");
}

let ticking = 0;

function show(name) {
  for (const each of ["try", "operate"]) {
    byId(each).hidden = each !== name;
    byId(`show-${each}`).setAttribute("aria-pressed", String(each === name));
  }
  clearInterval(ticking);
  if (name === "operate") {
    const tick = () => guarded(async () => { await overview(); await drawModels(); });
    tick();
    ticking = setInterval(tick, 2000);
  }
}

// ---- start -------------------------------------------------------------------------------------

function dial() {
  const [model] = wantedModels();
  const none = !model || model.alpha === null;
  byId("alpha").disabled = none;
  if (!none && !state.alphaMoved) byId("alpha").value = model.alpha;
  byId("alpha-value").textContent = none ? "(this model has none)" : Number(byId("alpha").value).toFixed(2);
}

async function start() {
  const found = await ask("v1/models");
  state.models = found.models;
  const names = () => found.models.map((each) => make("option", { value: each.name, textContent: each.name }));
  byId("model-a").replaceChildren(...names());
  byId("model-b").replaceChildren(make("option", { value: "", textContent: "nothing" }), ...names());
  const users = await ask("v1/users?limit=30");
  byId("users").replaceChildren(...users.users.map((each) => make("option", { value: each })));
  byId("about").textContent = `${found.models[0].items} items, ${found.models[0].users} training users`;
  dial();
  historyChanged();
}

byId("search").addEventListener("input", later(search, 120));
byId("search").addEventListener("keydown", searchKey);
byId("search").addEventListener("blur", () => showChoices([]));
byId("user-form").addEventListener("submit", (event) => { event.preventDefault(); guarded(showUser); });
byId("clear").addEventListener("click", () => { state.user = null; state.history = []; byId("user").value = ""; historyChanged(); });
const moved = later(recommend, 60);
byId("alpha").addEventListener("input", () => { state.alphaMoved = true; dial(); moved(); });
for (const id of ["model-a", "model-b", "length"]) {
  byId(id).addEventListener("change", () => { dial(); guarded(recommend); });
}
byId("similar-close").addEventListener("click", () => { byId("similar").hidden = true; byId("search").focus(); });
byId("show-try").addEventListener("click", () => show("try"));
byId("show-operate").addEventListener("click", () => show("operate"));
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("equipoise-token", byId("token").value);
  byId("token-form").hidden = true;
  guarded(start);
});
guarded(start);
