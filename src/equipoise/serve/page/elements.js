// What both views share: elements, requests and messages. Text is never markup.
export const byId = (id) => document.getElementById(id);

export function createElement(name, properties, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (key in element) element[key] = value; else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

// Titles and ids may set the direction of text, also of the text after them: characters that do so
// are left out, and the rest is isolated, by an element or by characters where there is none.
const undirected = (text) => String(text).replace(/[\u202a-\u202e\u2066-\u2069]/g, "");
export const isolatedText = (text) => createElement("bdi", { textContent: undirected(text) });
export const isolated = (text) => `\u2068${undirected(text)}\u2069`;

export const partMark = (isTail) =>
  createElement("span", { className: isTail ? "mark tail" : "mark head", textContent: isTail ? "tail" : "head" });

export const count = (number) => Number(number).toLocaleString("en");
export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)}%`;
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

export function duration(seconds) {
  const hours = seconds / 3600;
  return hours < 48 ? `${Number(hours.toPrecision(2))} hours` : `${Number((hours / 24).toPrecision(2))} days`;
}

export async function request(path, body) {
  const headers = {};
  const token = sessionStorage.getItem("equipoise-token");
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers,
    body: body === undefined ? undefined : JSON.stringify(body) });
  const content = await response.json();
  if (!response.ok) {
    if (response.status === 401 || response.status === 403) byId("token-form").hidden = false;
    throw new Error(content.detail || response.statusText);
  }
  return content;
}

export function showError(error) {
  const message = byId("message");
  message.hidden = !error;
  message.textContent = error ? error.message : "";
}

export async function withErrors(work) {
  try { await work(); showError(null); } catch (error) { showError(error); }
}

export function debounce(work, pause) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(() => withErrors(work), pause); };
}
