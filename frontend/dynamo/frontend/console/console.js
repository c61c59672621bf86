// The console: wires the playground, the key and the live view to each other.
import { Pane, forget } from "./chat.js";
import { watch } from "./live.js";
import { at, get, hasKey, make, onKey, put } from "./page.js";

const MOST_IMAGES = 4, MOST_BYTES = 4 << 20;
const panes = ["a", "b"].map((suffix) => new Pane(suffix, show));
const [left, right] = panes;
const NOTED = 300; // milliseconds until the server has noted that an answer has ended
let images = [], problem = "", last = "";

const compares = () => at("compare").checked;
const shownPanes = () => (compares() ? panes : [left]);
const busy = () => panes.some((pane) => pane.running);

// The request

function tools() {
  const text = at("tools").value.trim();
  problem = "";
  if (!text) return undefined;
  try {
    const list = JSON.parse(text);
    if (Array.isArray(list)) return list.length ? list : undefined;
    problem = "Tools: this is no JSON list.";
  } catch (error) { problem = `Tools: ${error.message}`; }
  return undefined;
}

const number = (id) => { const value = parseFloat(at(id).value); return Number.isFinite(value) ? value : undefined; };

function options() {
  const words = at("stop-words").value.split("\n").filter(Boolean);
  const given = { system: at("system").value.trim(), tools: tools(), max_tokens: number("max-tokens"),
    temperature: number("temperature"), top_p: number("top-p"), seed: number("seed"),
    stop: words.length ? words : undefined };
  if (at("stream").checked) Object.assign(given, { stream: true, stream_options: { include_usage: true } });
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined && value !== ""));
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const short = (name, value) => (typeof value === "string" && value.startsWith("data:image/") && value.length > 200
  ? `${value.slice(0, 40)}… (${value.length} characters)` : value);

function show(asked) {
  const body = asked || left.body(at("prompt").value || "Hello!", options(), images);
  const shown = hasKey() ? " \\\n  -H \"Authorization: Bearer $API_KEY\"" : "";
  put(at("raw"), JSON.stringify(body, short, 2));
  put(at("curl"), `curl -N ${quoted(new URL(left.path, document.baseURI.split(/[?#]/)[0]).href)} \\\n  `
    + `-H 'content-type: application/json'${shown} \\\n  -d ${quoted(JSON.stringify(body, short))}`);
  const chats = shownPanes().some((pane) => pane.kind === "chat");
  at("system-row").hidden = at("tools-row").hidden = !chats;
  at("image-row").hidden = !shownPanes().some((pane) => pane.takesImages);
}

async function send(text) {
  const asked = options();
  if (busy() || !left.model || (text !== null && !text.trim())) return;
  if (!at("chat-form").reportValidity()) return;
  if (problem) { put(at("figures-a"), problem); return; }
  const sent = images;
  at("prompt").value = "";
  choose([]);
  at("send").disabled = true; at("stop").disabled = false;
  const runs = shownPanes().map((pane) => pane.send(text, asked, sent));
  show(left.asked);
  const ends = await Promise.all(runs);
  ended(ends[0].id);
  if (text !== null && ends.every((end) => end.empty) && !at("prompt").value) at("prompt").value = text;
  at("prompt").focus();
}

function ended(id) {
  if (busy()) return;
  at("send").disabled = false; at("stop").disabled = true;
  last = id;
  setTimeout(explain, NOTED);
}

for (const pane of panes) {
  pane.goOn = async () => {
    at("send").disabled = true; at("stop").disabled = false;
    const { id } = await pane.send(null, options(), []);
    ended(id);
  };
}

// Where the time went: the server's own account of this request, asked for where somebody looks.
async function explain() {
  const id = last;
  if (!id || !at("stages-box").open) return;
  try {
    const told = await get(`requests/${encodeURIComponent(id)}`);
    put(at("stages-note"), `Request ${told.id}: ${told.took_ms.toFixed(1)} ms in the server`);
    at("stages").replaceChildren(...told.stages.map((stage) => make("li", `${stage.name}: ${stage.took_ms.toFixed(1)} ms`
      + (stage.what ? ` (${stage.what})` : "")
      + (stage.others ? `; others: ${stage.others.map((o) => `${o.worker} cost ${o.cost}`).join(", ")}` : ""))));
  } catch (error) {
    put(at("stages-note"), error.message);
    at("stages").replaceChildren();
  }
}

// Images

function choose(list) {
  images = list;
  if (!list.length) at("images").value = "";
}

const read = (file) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result);
  reader.onerror = () => failed(new Error(`${file.name} can't be read`));
  reader.readAsDataURL(file);
});

at("images").addEventListener("change", async () => {
  const files = [...at("images").files];
  const large = files.find((file) => file.size > MOST_BYTES);
  put(at("image-note"), large ? `${large.name} is larger than 4 MB.` : files.length > MOST_IMAGES
    ? "Only the first 4 are sent." : "Up to 4 images of 4 MB.");
  choose([]);
  if (large) return;
  try { images = await Promise.all(files.slice(0, MOST_IMAGES).map(read)); } catch (error) { put(at("image-note"), error.message); }
  show();
});

// Events

at("stages-box").addEventListener("toggle", explain);
const stop = () => panes.forEach((pane) => pane.stop());
at("chat-form").addEventListener("submit", (event) => { event.preventDefault(); send(at("prompt").value); });
at("chat-form").addEventListener("input", () => show());
at("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send(at("prompt").value);
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
at("stop").addEventListener("click", stop);
at("clear").addEventListener("click", () => { panes.forEach((pane) => pane.clear()); show(); at("prompt").focus(); });
at("compare").addEventListener("change", () => {
  right.clear();
  at("pane-b").hidden = !compares();
  at("panes").classList.toggle("two", compares());
  show();
});
at("copy").addEventListener("click", async () => {
  try { await navigator.clipboard.writeText(at("curl").textContent); put(at("copied"), "Copied."); }
  catch { getSelection().selectAllChildren(at("curl")); put(at("copied"), "Selected: copy it with your keyboard."); }
});
const onModels = (models) => panes.forEach((pane) => pane.offer(models));
show();
const again = watch(onModels);
onKey(() => { forget(); again(); at("prompt").focus(); });
