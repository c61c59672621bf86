// A cluster's pipelines: their state, why they wait, what scales them, and what each namespace uses.
import { at, make, onKey, put, rows, say, useKey } from "./page.js";
import { follow } from "./stream.js";

const place = (pipeline) => `${pipeline.namespace}/${pipeline.name}`;
const moment = (text) => (text ? new Date(text).toLocaleString() : "–");
let state = null, chosen = "";

function show(snapshot) {
  state = snapshot;
  const ready = state.pipelines.filter((pipeline) => pipeline.state === "ready").length;
  say(`${state.cluster}: ${ready} of ${state.pipelines.length} pipeline(s) ready`, Boolean(state.error));
  at("problem").hidden = !state.error;
  put(at("problem"), state.error);
  put(at("unseen"), state.unseen.length ? `Not seen: ${state.unseen.join("; ")}.` : "");
  render();
}

function render() {
  if (!state) return;
  const words = at("filter").value.trim().toLowerCase(), waiting = at("waiting").checked;
  const wanted = state.pipelines.filter((p) => !(waiting && p.state === "ready")
    && `${place(p)} ${p.model} ${p.engines} ${p.state} ${p.reason} ${p.message}`.toLowerCase().includes(words));
  showPipelines(wanted);
  const hidden = state.pipelines.length - wanted.length;
  put(at("pipelines-note"), [hidden ? `${hidden} more don't match.` : "",
    state.more ? `Only the first ${state.pipelines.length} are listed; name a namespace with -n.` : ""].join(" ").trim());
  rows(at("namespaces"), state.namespaces.map((n) => [n.name, `${n.ready} of ${n.pipelines}`,
    `${n.available} of ${n.wanted}`, n.pods, devices(n.devices),
    n.quotas.map((q) => `${q.resource} ${q.used} of ${q.hard}`).join(", ") || "–"]), "No namespace has a pipeline.");
  showOne();
}

const devices = (asked) => Object.entries(asked).map(([name, many]) => `${many} ${name}`).join(", ") || "–";

function scaled(scaling) {
  if (!scaling) return state.known.autoscalers ? "–" : "unknown";
  const moves = scaling.desired !== null && scaling.current !== scaling.desired ? ` → ${scaling.desired}` : "";
  return `${scaling.current ?? "?"}${moves}, ${scaling.min} to ${scaling.max}`;
}

// Rows stay where they are, so that the focus does.
function showPipelines(pipelines) {
  const cells = pipelines.map((p) => [place(p), p.state, `${p.available} of ${p.wanted}`, p.model || "–", p.engines,
    scaled(p.scaling), p.state === "ready" ? "" : [p.reason, p.message].filter(Boolean).join(": ")]);
  rows(at("pipelines"), cells, state.pipelines.length ? "Nothing matches."
    : state.error ? "Nothing could be read yet." : "No pipeline yet: dynamo apply FILE makes one.");
  pipelines.forEach((pipeline, index) => {
    const cell = at("pipelines").rows[index].cells[0], name = place(pipeline);
    let button = cell.querySelector("button");
    if (!button) {
      button = make("button");
      button.type = "button";
      button.addEventListener("click", () => choose(button.textContent));
      cell.replaceChildren(button);
    }
    put(button, name);
    button.setAttribute("aria-pressed", String(name === chosen));
  });
}

function choose(name) {
  chosen = name;
  render();
  at("detail-title").focus();
}

const facts = (conditions) => conditions.map((c) => [c.type, c.status, c.reason, moment(c.since), c.message]);

function showOne() {
  const one = state.pipelines.find((pipeline) => place(pipeline) === chosen);
  at("detail").hidden = !one;
  put(at("detail-title"), one ? chosen : "One pipeline");
  put(at("detail-note"), one ? `${one.state}, made ${moment(one.created)}. ${one.message}`
    : chosen ? `${chosen} is gone.` : "Choose a pipeline by its name.");
  if (!one) return;
  put(at("detail-url"), one.url ? `Endpoint: ${one.url}` : "No endpoint yet.");
  put(at("detail-command"), `dynamo get-url ${one.name} -n ${one.namespace} --port-forward`);
  rows(at("parts"), one.parts.map((part) => [part.name, part.done ? "ready" : "waits", part.text]), "No operator has looked yet.");
  rows(at("conditions"), facts(one.conditions), "No operator has looked yet.");
  put(at("scaling-note"), one.scaling
    ? `${one.scaling.by}: ${scaled(one.scaling)} workers; last change ${moment(one.scaling.last)}.`
    : state.known.autoscalers ? "No autoscaler: spec.replicas says how many (kubectl scale)."
      : "Unknown: not all autoscalers could be read.");
  rows(at("scaling"), one.scaling ? facts(one.scaling.conditions) : [], "None.");
  const lines = one.events.length ? one.events.map((e) => `${moment(e.time)}: ${e.text}`)
    : [state.known.events && !state.short ? "None." : "Unknown: not all events could be read."];
  const list = at("events");
  while (list.children.length > lines.length) list.lastElementChild.remove();
  lines.forEach((line, index) => put(list.children[index] || list.appendChild(make("li")), line));
}

at("filter").addEventListener("input", render);
at("waiting").addEventListener("change", render);
const given = new URLSearchParams(location.hash.slice(1)).get("key");
if (given) {
  useKey(given);
  history.replaceState(null, "", location.pathname); // the address may be copied, or stand on a shared screen
}
const again = follow("console/events", show);
onKey(again);
