// The page: its elements, the API key, and requests to the server. Strangers' words become text, never HTML.
const DEADLINE = 10000;

export const at = (id) => document.getElementById(id);

export function put(element, text) { if (element.textContent !== text) element.textContent = text; }

export function make(tag, text, name) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (name) element.className = name;
  return element;
}

export function say(text, bad) { put(at("state"), text); at("state").classList.toggle("bad", Boolean(bad)); }

// The key lives in this variable only: no storage, no cookie, no URL.
let key = "";
export const hasKey = () => Boolean(key);
export const needsKey = () => !at("key-form").hidden;
export const headers = (more) => ({ ...(key ? { authorization: `Bearer ${key}` } : {}), ...more });

export function askForKey(wrong) {
  if (needsKey() && !wrong) return;
  const first = !needsKey();
  at("key-form").hidden = false;
  put(at("key-note"), wrong ? "The server doesn't know this key. Try another one."
    : "This server asks for a key. This page forgets it when you close or reload it.");
  say("an API key is needed", true);
  if (first) at("key").focus();
}

export function useKey(text) { key = text; }

export function keyKnown() { at("key-form").hidden = true; }

export function onKey(then) {
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const typed = at("key").value.trim();
    at("key").value = "";
    if (!/^[!-~]+$/.test(typed)) { askForKey(true); return; } // no header can hold it
    key = typed;
    keyKnown();
    then();
  });
}

export async function ask(path, options) {
  const answer = await fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", ...options,
    headers: headers(options && options.headers) });
  if (answer.status === 401) { askForKey(hasKey()); throw Object.assign(new Error("an API key is needed"), { status: 401 }); }
  return answer;
}

export async function problem(reply) {
  try { return String((await reply.json()).error.message); } catch { return `HTTP ${reply.status}`; }
}

export async function get(path) {
  const answer = await ask(path, { signal: AbortSignal.timeout(DEADLINE) });
  if (!answer.ok) throw Object.assign(new Error(await problem(answer)), { status: answer.status });
  return answer.json();
}

// Calls `take` with the data of each event of a stream; an event is bounded, since anybody may answer.
const LONGEST = 4 << 20;
export async function events(reply, take, alive) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return false;
    if (alive) alive();
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    if (rest.length > LONGEST) { reader.cancel(); throw new Error("an event of the stream is too long"); }
    for (const line of lines) {
      if (line.startsWith("data:") && take(line.slice(5).trim()) === false) { reader.cancel(); return true; }
    }
  }
}

export function rows(body, lines, empty) {
  const columns = body.parentElement.tHead.rows[0].cells.length;
  const wanted = lines.length ? lines : [[empty]];
  while (body.rows.length > wanted.length) body.deleteRow(-1);
  wanted.forEach((cells, index) => {
    const row = body.rows[index] || body.insertRow();
    while (row.cells.length > cells.length) row.deleteCell(-1);
    cells.forEach((text, place) => {
      const cell = row.cells[place] || row.insertCell();
      cell.colSpan = cells.length === 1 ? columns : 1;
      put(cell, String(text));
      cell.className = text === "ready" ? "good" : /^(away|gone|stalled)$/.test(text) ? "bad" : "";
    });
  });
}
