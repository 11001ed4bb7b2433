// The page: a history on one side, the lists of two models on the other, and a view for operators.
// Text from the service is never inserted as markup.
import { popularityCurve } from "./charts.js";
import { byId, count, createElement, debounce, duration, isolatedText, partMark, plural, request, withErrors,
  isolated } from "./elements.js";
import { startOperating, stopOperating } from "./operate.js";

const SIDES = ["a", "b"];
const state = { history: [], user: null, models: [], lists: [], requestNumber: 0, isTouched: false };
const isMoved = { a: false, b: false }; // dials

// ---- the history -------------------------------------------------------------------------------

function addItem(item) {
  if (state.user !== null) { state.user = null; byId("user").value = ""; }
  if (!state.history.some((other) => other.item === item.item)) state.history.push(item);
  historyChanged();
}

function historyChanged() {
  state.isTouched = true;
  byId("example").hidden = true;
  const list = byId("history");
  list.replaceChildren(...state.history.map((item) => {
    const remove = createElement("button", { type: "button", textContent: "×" });
    remove.setAttribute("aria-label", `Remove ${isolated(item.title)}`);
    remove.addEventListener("click", () => {
      state.user = null;
      state.history = state.history.filter((other) => other.item !== item.item);
      historyChanged();
      byId("search").focus();
    });
    return createElement("li", {}, isolatedText(item.title), remove);
  }));
  const items = plural(state.history.length, "item");
  byId("whose").replaceChildren(...(state.user === null
    ? [state.history.length ? items : "Add items or load a user. An empty history gets popular items."]
    : ["User ", isolatedText(state.user), state.history.length ? `: ${items}` : ": nothing found, so the lists are popular items"]));
  withErrors(recommend);
}

async function showUser(user) {
  const answer = await request(`v1/users/${encodeURIComponent(user)}`);
  state.user = user;
  state.history = answer.items;
  historyChanged();
}

// The example is the one of the training users offered whose two lists differ most: in the
// number of items from the tail, and then in items. Which list has more of them does not matter.
async function showExample(users) {
  const models = selectedModels();
  if (!users.length || !models.length) { historyChanged(); return; }
  const requests = users.flatMap((user) => models.map(({ model }) => ({ user, k: 10, model: model.name })));
  const { answers } = models.length > 1 ? await request("v1/recommend:batch", { requests }) : { answers: [] };
  const lists = answers.map((answer) => (answer.result ? answer.result.items : []));
  const differences = users.map((_, n) => (models.length > 1 ? difference(lists[2 * n], lists[2 * n + 1]) : 0));
  const user = users[differences.indexOf(Math.max(...differences))];
  if (state.isTouched) return; // a history was chosen in the meantime
  await showUser(user);
  byId("example").hidden = false;
  byId("example").textContent = models.length < 2 ? "An example: the first of the training users."
    : `An example: of the ${plural(users.length, "training user")} offered above, the one for whom the lists of these models differ most ` +
      "in their number of items from the tail, and then in items.";
}

function difference(first, second) {
  const others = new Set(second.map((item) => item.item));
  const tail = (list) => list.filter((item) => item.tail).length;
  return 1000 * Math.abs(tail(first) - tail(second)) + first.filter((item) => !others.has(item.item)).length;
}

// ---- search: a combobox with results ------------------------------------------------------------

let choices = [], selected = -1;

async function search() {
  const text = byId("search").value.trim();
  if (!text) { showChoices([]); return; }
  const answer = await request(`v1/items?limit=8&q=${encodeURIComponent(text)}`);
  if (byId("search").value.trim() === text) showChoices(answer.items, text);
}

function showChoices(items, text) {
  choices = items;
  selected = -1;
  const list = byId("results"), box = byId("search"), status = byId("search-status");
  list.replaceChildren(...items.map((item, n) => {
    const option = createElement("li", { id: `result-${n}` }, isolatedText(item.title));
    option.setAttribute("role", "option");
    option.setAttribute("aria-selected", "false");
    option.addEventListener("mousedown", (event) => { event.preventDefault(); addChoice(n); });
    return option;
  }));
  list.hidden = !items.length;
  box.setAttribute("aria-expanded", String(items.length > 0));
  box.removeAttribute("aria-activedescendant");
  status.replaceChildren(...(text && !items.length ? ["Nothing found for ", isolatedText(text)] : []));
}

function selectChoice(n) {
  const list = byId("results").children;
  if (!list.length) return;
  if (selected >= 0) list[selected].setAttribute("aria-selected", "false");
  selected = (n + list.length) % list.length;
  list[selected].setAttribute("aria-selected", "true");
  list[selected].scrollIntoView({ block: "nearest" });
  byId("search").setAttribute("aria-activedescendant", `result-${selected}`);
}

function addChoice(n) {
  const item = choices[n];
  byId("search").value = "";
  showChoices([]);
  if (item) addItem(item);
}

function searchKey(event) {
  if (event.key === "ArrowDown") { selectChoice(selected + 1); event.preventDefault(); }
  else if (event.key === "ArrowUp") { selectChoice(selected < 0 ? -1 : selected - 1); event.preventDefault(); }
  else if (event.key === "Enter" && choices.length) { addChoice(Math.max(selected, 0)); event.preventDefault(); }
  else if (event.key === "Escape") showChoices([]);
}

// ---- lists -------------------------------------------------------------------------------------

const modelOf = (side) => state.models.find((model) => model.name === byId(`model-${side}`).value);

function selectedModels() {
  return SIDES.map((side) => ({ side, model: modelOf(side) })).filter(({ model }) => model);
}

async function recommend() {
  const number = ++state.requestNumber;
  const sides = selectedModels();
  const lists = await Promise.all(sides.map(async ({ side, model }) => {
    const body = { k: Number(byId("length").value), model: model.name, explain: model.explains ? 3 : 0 };
    if (state.user !== null) body.user = state.user;
    else body.history = state.history.map((item) => item.item);
    if (isMoved[side] && model.alpha !== null) body.alpha = Number(byId(`alpha-${side}`).value);
    return { side, ...await request("v1/recommend", body) };
  }));
  if (number !== state.requestNumber) return;
  const isSameModel = lists.length > 1 && lists[0].model === lists[1].model;
  for (const list of lists) list.name = isSameModel && list.alpha !== null ? `${list.model} at ${list.alpha.toFixed(2)}` : list.model;
  state.lists = lists;
  const ids = lists.map((list) => new Set(list.items.map((item) => item.item)));
  const inBoth = lists.length > 1 ? [...ids[0]].filter((item) => ids[1].has(item)).length : 0;
  for (const side of SIDES) {
    const n = lists.findIndex((list) => list.side === side);
    const other = lists.length > 1 ? ids[1 - n] : null;
    byId(`list-${side}`).replaceChildren(...(n < 0 ? [] : drawList(lists[n], other)));
  }
  drawCurve();
  const parts = lists.map((list) => {
    const tail = list.items.filter((item) => item.tail).length;
    return `${list.name}: ${plural(list.items.length, "item")}, ${tail} from the tail` +
      (list.source === "popular" ? ", ranked by popularity" : "");
  });
  if (lists.length > 1) parts.push(`${plural(inBoth, "item")} in both lists`);
  byId("status").textContent = parts.join("; ");
}

function drawCurve() {
  const model = state.lists.length ? modelOf(state.lists[0].side) : null;
  if (!model) return;
  byId("curve").replaceChildren(popularityCurve(model, state.lists, byId("curve").clientWidth));
  byId("curve-title").textContent = `How many users the items of ${model.name} have. Marked are the listed items: ` +
    state.lists.map((list, n) => `${n ? "◇" : "●"} ${list.name}`).join(", ") + ".";
}

function drawList(list, otherItems) {
  const largest = Math.max(1e-12, ...list.items.flatMap((item) => (item.reasons || []).map((r) => Math.abs(r.contribution))));
  const about = `${list.model}, version ${list.version}` + (list.alpha === null ? "" : `, alpha ${list.alpha.toFixed(2)}`);
  const heading = createElement("h3", { textContent: about });
  if (!list.items.length) return [heading, createElement("p", { className: "dim", textContent: "No item is left to list." })];
  const rows = createElement("ol", {}, ...list.items.map((item) => {
    const title = createElement("button", { type: "button", className: "title" }, isolatedText(item.title));
    title.setAttribute("aria-label", `${isolated(item.title)}: show similar items`);
    title.addEventListener("click", () => withErrors(() => showSimilar(item, list.model)));
    const mark = partMark(item.tail);
    mark.title = plural(item.users, "user");
    const row = createElement("li", {}, title, createElement("span", {}, mark, " ", addButton(item)));
    if (otherItems && !otherItems.has(item.item)) {
      row.className = "only";
      row.append(createElement("span", { className: "only-note", textContent: "only in this list" }));
    }
    if (item.reasons && item.reasons.length) row.append(drawReasons(item.reasons, largest));
    return row;
  }));
  rows.setAttribute("aria-label", `Items of ${list.name}`);
  return [heading, rows];
}

function addButton(item) {
  const add = createElement("button", { type: "button", textContent: "+" });
  add.setAttribute("aria-label", `Add ${isolated(item.title)} to the history`);
  add.addEventListener("click", () => addItem(item));
  return add;
}

function drawReasons(reasons, largest) {
  return createElement("dl", { className: "reasons" }, ...reasons.map((reason) => {
    const bar = createElement("span", { className: reason.contribution < 0 ? "bar against" : "bar" });
    bar.style.width = `${(100 * Math.abs(reason.contribution) / largest).toFixed(1)}%`;
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", `contribution ${reason.contribution.toPrecision(2)}`);
    return createElement("div", {}, createElement("dt", {}, "because of ", isolatedText(reason.title)), createElement("dd", {}, bar));
  }));
}

function drawItem(item, note) {
  return createElement("li", {}, isolatedText(item.title), createElement("span", {}, note, " ", addButton(item)));
}

async function showTrending() {
  const model = modelOf("a");
  const isKnown = Boolean(model) && model.half_life !== null;
  byId("trending").hidden = !isKnown;
  if (!isKnown) return;
  const answer = await request(`v1/trending?k=10&model=${encodeURIComponent(model.name)}`);
  byId("trending-about").textContent = answer.items.length
    ? `Users of each item; a use ${duration(answer.half_life)} before the last one counts half.`
    : "Nothing found: no item has been used lately.";
  byId("trending-list").replaceChildren(...answer.items.map((item) =>
    drawItem(item, createElement("span", { className: "dim", textContent: item.recent_users.toFixed(1) }))));
}

async function showSimilar(item, model) {
  const answer = await request(`v1/similar?k=10&item=${encodeURIComponent(item.item)}&model=${encodeURIComponent(model)}`);
  byId("similar-title").replaceChildren("Similar to ", isolatedText(answer.title));
  byId("similar-list").replaceChildren(...answer.items.map((similar) => drawItem(similar, partMark(similar.tail))));
  byId("similar-none").hidden = answer.items.length > 0;
  byId("similar").hidden = false;
  byId("similar-title").focus();
}

// ---- dials -------------------------------------------------------------------------------------

function updateDial(side) {
  const model = modelOf(side), slider = byId(`alpha-${side}`);
  const isDisabled = !model || model.alpha === null;
  byId(`dial-${side}`).hidden = !model;
  slider.disabled = isDisabled;
  if (!isDisabled && !isMoved[side]) slider.value = model.alpha;
  byId(`reset-${side}`).hidden = isDisabled || !isMoved[side];
  if (!isDisabled) byId(`reset-${side}`).textContent = `Back to ${model.alpha.toFixed(2)}, as fitted`;
  const alpha = isMoved[side] ? Number(slider.value) : model && model.alpha;
  byId(`alpha-value-${side}`).textContent = isDisabled ? "(not available for this model)" : alpha.toFixed(2);
}

function changeModel(side) {
  isMoved[side] = false;
  updateDial(side);
  withErrors(recommend);
}

// ---- start -------------------------------------------------------------------------------------

function showView(name) {
  for (const view of ["try", "operate"]) {
    byId(view).hidden = view !== name;
    byId(`show-${view}`).setAttribute("aria-pressed", String(view === name));
  }
  if (name === "operate") startOperating(); else { stopOperating(); drawCurve(); }
}

async function start() {
  const answer = await request("v1/models");
  state.models = answer.models;
  const names = () => answer.models.map((model) => createElement("option", { value: model.name, textContent: model.name }));
  byId("model-a").replaceChildren(...names());
  byId("model-b").replaceChildren(createElement("option", { value: "", textContent: "none" }), ...names());
  byId("model-b").value = answer.models.length > 1 ? answer.models[1].name : "";
  SIDES.forEach(updateDial);
  const { users } = await request("v1/users?limit=30");
  byId("users").replaceChildren(...users.map((user) => createElement("option", { value: user })));
  byId("about").textContent = `${count(answer.models[0].items)} items, ${count(answer.models[0].users)} training users`;
  await showExample(users);
  await showTrending();
}

byId("search").addEventListener("input", debounce(search, 120));
byId("search").addEventListener("keydown", searchKey);
byId("search").addEventListener("blur", () => showChoices([]));
byId("user-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const user = byId("user").value.trim();
  if (user) withErrors(() => showUser(user));
});
byId("clear").addEventListener("click", () => { state.user = null; state.history = []; byId("user").value = ""; historyChanged(); });
const recommendSoon = debounce(recommend, 60);
for (const side of SIDES) {
  byId(`alpha-${side}`).addEventListener("input", () => { isMoved[side] = true; updateDial(side); recommendSoon(); });
  byId(`reset-${side}`).addEventListener("click", () => { changeModel(side); byId(`alpha-${side}`).focus(); });
  byId(`model-${side}`).addEventListener("change", () => changeModel(side));
}
byId("length").addEventListener("change", () => withErrors(recommend));
byId("similar-close").addEventListener("click", () => { byId("similar").hidden = true; byId("search").focus(); });
byId("model-a").addEventListener("change", () => withErrors(showTrending));
addEventListener("resize", debounce(drawCurve, 100));
byId("show-try").addEventListener("click", () => showView("try"));
byId("show-operate").addEventListener("click", () => showView("operate"));
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("equipoise-token", byId("token").value);
  byId("token-form").hidden = true;
  withErrors(start);
});
withErrors(start);
