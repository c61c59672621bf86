// What the server streams: models, workers, and which worker took what and why.
import { at, make, put, rows, say } from "./page.js";
import { follow } from "./stream.js";

const STAYS = 15000, MOST_DRAWN = 12, MOST_GONE = 12, ROW = 34, WIDTH = 400;
const SVG = "http://www.w3.org/2000/svg";
let seen = 0, first = true;
let known = new Map(); // worker -> its row, as last sent
const gone = new Map(); // worker -> { row, since }
const took = new Map(); // worker -> when it last took a request

export function watch(onModels) { return follow("console/events", (state) => show(state, onModels)); }

function show(state, onModels) {
  onModels(state.models);
  rows(at("models"), state.models.map((m) => [m.id, m.types.join(", "), m.context ?? "–", m.router]), "No model yet.");
  const routes = state.routes.filter((route) => first || route.number > seen);
  if (state.routes.length) seen = state.routes[state.routes.length - 1].number;
  routes.forEach((route) => took.set(route.worker, performance.now()));
  notice(state.workers);
  showWorkers(state);
  put(at("limits"), limits(state.limits));
  showRoutes(state.routes);
  draw(state.workers);
  say(`${state.models.length} model(s), ${state.total} worker(s)`);
  first = false;
}

// Who came and who went, said once, for those who don't see the picture too.
function notice(workers) {
  const now = performance.now(), present = new Map(workers.map((worker) => [worker.id, worker]));
  const said = [];
  for (const [id, row] of known) if (!present.has(id)) { gone.set(id, { row, since: now }); said.push(`Worker ${id} is gone.`); }
  for (const [id, row] of present) {
    gone.delete(id);
    if (!known.has(id) && !first) said.push(`Worker ${id} of ${row.model} has come.`);
    else if (known.has(id) && known.get(id).state !== row.state) said.push(`Worker ${id} is ${row.state}.`);
  }
  for (const [id, { since }] of gone) if (now - since > STAYS || gone.size > MOST_GONE) gone.delete(id);
  for (const id of took.keys()) if (!present.has(id)) took.delete(id);
  known = present;
  if (said.length) put(at("news"), said.slice(0, 4).join(" "));
}

const share = (value) => (value === null ? "–" : `${Math.round(value * 100)} %`);

function showWorkers(state) {
  rows(at("workers"), state.workers.map((w) => [w.id, w.role === "prefill" ? `${w.model} (prefill)` : w.model, w.state,
    w.in_flight, w.running, w.queue, share(w.kv_usage), share(w.cache_hits), w.restarts]), "No worker yet.");
  const more = state.total - state.workers.length;
  put(at("workers-note"), (more > 0 ? `${more} more worker(s) aren't listed. ` : "")
    + "In flight: requests of this frontend process. Running, queue and KV: as the worker says.");
}

function limits(used) {
  if (!used) return "";
  const all = `Requests here: ${used.in_flight}${used.most === null ? "" : ` of ${used.most}`}.`;
  if (!used.callers) return all;
  return `${all} Callers: ${used.callers}; busiest: ${used.busiest.join(", ")} of ${used.most_per_client}.`;
}

function why(route) {
  const parts = [];
  if (route.prefill) parts.push("computes the prompt for another");
  if (route.reason === "pinned") parts.push("the request names it");
  else if (route.reason === "session") parts.push("its session is there");
  else if (route.reason === "again") parts.push("after another worker failed");
  parts.push(`mode ${route.mode}`);
  if (route.cost !== null) parts.push(`${route.cached} of ${route.blocks} blocks cached, cost ${route.cost}`);
  if (route.others.length) parts.push("others: " + route.others.map((o) => `${o.worker} cost ${o.cost}`).join(", "));
  return parts.join("; ");
}

function showRoutes(routes) {
  const list = at("routes"), lines = routes.slice().reverse();
  if (!lines.length) { if (!list.children.length) list.append(make("li", "None since you look.")); return; }
  while (list.children.length > lines.length) list.lastElementChild.remove();
  lines.forEach((route, index) => {
    const item = list.children[index] || list.appendChild(make("li"));
    put(item, `${route.model} → ${route.worker}: ${why(route)}`);
  });
}

// The picture: the frontend on the left, each worker on the right, a line as wide as what is in flight there.

function draw(workers) {
  const lost = [...gone.values()].map(({ row }) => ({ ...row, state: "gone", in_flight: 0 }));
  const busy = (worker) => [worker.in_flight, took.get(worker.id) || 0];
  const order = workers.length > MOST_DRAWN
    ? workers.slice().sort((a, b) => busy(b)[0] - busy(a)[0] || busy(b)[1] - busy(a)[1]) : workers;
  const drawn = [...order.slice(0, MOST_DRAWN), ...lost];
  const height = Math.max(2, drawn.length) * ROW + 12, picture = at("picture");
  picture.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  const names = drawn.map((w) => `${w.id} ${w.state}, ${w.in_flight} in flight`);
  const more = workers.length - Math.min(MOST_DRAWN, workers.length);
  picture.setAttribute("aria-label", drawn.length ? `Frontend sends to ${drawn.length} workers: ${names.join("; ")}`
    + (more ? `; ${more} more` : "") : "No worker yet");
  const nodes = [box(4, height / 2 - 16, 78, 32, "frontend", "hub", 43, height / 2 + 5)];
  drawn.forEach((worker, index) => {
    const y = 6 + index * ROW, middle = y + ROW / 2 - 2, fresh = performance.now() - (took.get(worker.id) || -1e9) < 1500;
    const line = element("path", { d: `M82 ${height / 2} C 130 ${height / 2}, 120 ${middle}, 168 ${middle}`,
      "stroke-width": Math.min(10, 1 + worker.in_flight), class: `way ${worker.state}${fresh ? " fresh" : ""}` });
    const node = box(168, y, 228, ROW - 6, `${worker.id.slice(-6)} ${worker.model.slice(0, 14)} · ${worker.state}`
      + (worker.state === "gone" ? "" : ` · ${worker.in_flight}`), `worker ${worker.state}${fresh ? " fresh" : ""}`, 176, middle + 4);
    node.setAttribute("data-worker", worker.id);
    nodes.unshift(line);
    nodes.push(node);
  });
  picture.replaceChildren(...nodes);
}

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  return made;
}

function box(x, y, width, height, text, name, textX, textY) {
  const group = element("g", { class: name });
  const label = element("text", { x: textX, y: textY, ...(name === "hub" ? { "text-anchor": "middle" } : {}) });
  label.textContent = text;
  group.append(element("rect", { x, y, width, height, rx: 5 }), label);
  return group;
}
