// A pane of the playground: one model, its conversation, and the figures of each answer.
import { ask, at, events, get, make, problem, put } from "./page.js";

const MOST_TURNS = 200, MOST_CALLS = 32;
const kinds = new Map(); // model -> "chat" or "completions", once known

export function forget() { kinds.clear(); }

export class Pane {
  constructor(suffix, changed) {
    this.suffix = suffix;
    this.changed = changed;
    this.turns = [];
    this.running = null;
    this.asked = null;
    this.answerCalls = () => {}; // adds the results of the tools that were called; servers ask for them before anything else
    this.models = new Map();
    this.part("model").addEventListener("change", () => { this.clear(); this.choose(); }); // it has seen nothing of the other's
  }

  part(name) { return at(`${name}-${this.suffix}`); }

  get model() { return this.part("model").value; }

  get kind() { return kinds.get(this.model) || "chat"; }

  get path() { return this.kind === "chat" ? "v1/chat/completions" : "v1/completions"; }

  get takesImages() { return this.kind === "chat" && Boolean((this.models.get(this.model) || {}).images); }

  offer(models) {
    this.models = new Map(models.map((m) => [m.id, m]));
    const names = models.filter((m) => m.types.includes("chat") || m.types.includes("completions")).map((m) => m.id);
    const select = this.part("model");
    if (names.join("\n") === [...select.options].map((o) => o.value).join("\n")) {
      if (this.model && !kinds.has(this.model)) this.choose();
      return;
    }
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => {
      const option = make("option", name);
      option.value = name;
      return option;
    }));
    if (names.includes(chosen)) select.value = chosen;
    else if (this.suffix === "b" && names.length > 1) select.value = names[1];
    this.choose();
  }

  async choose() {
    const name = this.model, about = this.models.get(name);
    if (name && about && !kinds.has(name)) {
      let kind = about.types.includes("chat") ? "chat" : "completions";
      if (kind === "chat") {
        try {
          const told = await get(`tokenizer_info?model=${encodeURIComponent(name)}`);
          // Simulated models have the tokenizer of bytes and no template, and chat all the same.
          if (told.chat_template === null && told.tokenizer_class !== "ByteTokenizer") kind = "completions";
        } catch (error) {
          if (error.status === undefined || error.status === 401) return; // asked again with the next snapshot
        }
      }
      kinds.set(name, kind);
    }
    this.part("base-note").hidden = this.kind === "chat";
    this.changed();
  }

  clear() {
    this.stop();
    this.turns = [];
    this.answerCalls = () => {};
    this.part("log").replaceChildren();
    this.part("log").hidden = true;
    put(this.part("figures"), "");
  }

  stop() { if (this.running) this.running.stop.abort(); }

  body(text, options, images) {
    const { system, tools, ...rest } = options, asked = { model: this.model };
    if (this.kind === "chat") {
      const content = images.length && this.takesImages
        ? [{ type: "text", text }, ...images.map((url) => ({ type: "image_url", image_url: { url } }))] : text;
      asked.messages = [...(system ? [{ role: "system", content: system }] : []), ...this.turns,
        ...(text === null ? [] : [{ role: "user", content }])];
      if (tools) asked.tools = tools;
    } else asked.prompt = text;
    return Object.assign(asked, rest);
  }

  entry(who, text, images) {
    const article = make("article"), log = this.part("log");
    const shown = { article, thought: make("p", "", "text thought"), said: make("p", text, "text"),
      calls: make("div"), about: make("p", "", "about") };
    article.append(make("h3", who), shown.thought, shown.said);
    for (const url of images || []) {
      const image = make("img");
      image.alt = "Image of the message";
      image.src = url;
      article.append(image);
    }
    article.append(shown.calls, shown.about);
    log.hidden = false;
    log.append(article);
    while (log.children.length > MOST_TURNS) log.firstElementChild.remove();
    log.scrollTop = log.scrollHeight;
    return shown;
  }

  // Sends a text, or with `null` what the conversation has become; returns what is to be shown of the end.
  async send(text, options, images) {
    this.answerCalls();
    const asked = this.asked = this.body(text, options, images), chat = this.kind === "chat";
    if (text !== null) this.entry(chat ? "You" : "Prompt", text, chat && this.takesImages ? images : []);
    const shown = this.entry(asked.model, "");
    const run = { stop: new AbortController(), began: performance.now(), tokens: 0, calls: [], id: "" };
    const mine = this.turns; // another list by now: cleared, or another model
    this.running = run;
    shown.article.setAttribute("aria-busy", "true");
    put(this.part("figures"), "Waiting for the first token…");
    let ending = "";
    try {
      await this.answer(asked, run, shown);
    } catch (error) {
      ending = run.stop.signal.aborted ? "stopped" : error.message || "the connection broke";
      if (!run.stop.signal.aborted) shown.about.classList.add("bad");
    }
    this.running = null;
    shown.article.removeAttribute("aria-busy");
    const figures = [...timing(run), ...(ending ? [ending] : [])].join(" · ");
    put(shown.about, figures);
    put(this.part("figures"), figures);
    const said = shown.said.textContent, calls = ending ? [] : run.calls;
    if (chat && this.turns === mine && (said || calls.length)) {
      if (text !== null) mine.push({ role: "user", content: asked.messages[asked.messages.length - 1].content });
      mine.push({ role: "assistant", content: said || null, ...(calls.length ? { tool_calls: calls } : {}) });
      if (mine.length > MOST_TURNS) mine.splice(0, mine.length - MOST_TURNS);
      while (mine[0].role === "tool") mine.shift(); // its call went
      if (calls.length) this.offerResults(shown, calls, mine);
    }
    return { id: run.id, empty: Boolean(ending) && !said };
  }

  // A form for what the tools that the model called have to say.
  offerResults(shown, calls, turns) {
    const group = make("fieldset");
    group.append(make("legend", "Results of the tools"));
    const fields = calls.map((call) => {
      const label = make("label", `${call.function.name}(${call.function.arguments})`), field = make("textarea");
      field.rows = 1;
      label.append(field);
      group.append(label);
      return field;
    });
    const button = make("button", "Send results");
    button.type = "button";
    this.answerCalls = () => {
      this.answerCalls = () => {};
      group.remove();
      calls.forEach((call, index) => turns.push({ role: "tool", tool_call_id: call.id, content: fields[index].value }));
    };
    button.addEventListener("click", () => { if (!this.running && this.turns === turns) this.goOn(); });
    group.append(button);
    shown.calls.append(group);
  }

  async answer(asked, run, shown) {
    const reply = await ask(this.path, { method: "POST", body: JSON.stringify(asked), signal: run.stop.signal,
      headers: { "content-type": "application/json" } });
    run.id = reply.headers.get("x-request-id") || "";
    if (!reply.ok) throw new Error(await problem(reply));
    if (!asked.stream) {
      const whole = await reply.json();
      run.first = run.last = performance.now();
      this.take(whole, run, shown, whole.choices[0].message || whole.choices[0]);
      return;
    }
    run.streamed = true;
    const ended = await events(reply, (data) => {
      if (data === "[DONE]") return false;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const choice = (chunk.choices || [])[0];
      this.take(chunk, run, shown, choice ? choice.delta || choice : {});
      return true;
    });
    if (!ended) throw new Error("the stream was cut before its end");
  }

  take(chunk, run, shown, part) {
    const thought = part.reasoning_content || "", text = part.content ?? part.text ?? "", called = part.tool_calls || [];
    if (thought || text || called.length) {
      run.last = performance.now();
      run.first ??= run.last;
      run.tokens += 1; // until the usage is known
      if (thought) shown.thought.append(thought);
      if (text) shown.said.append(text);
      if (called.length) { gather(run.calls, called); put(shown.thought, run.calls.map((c) => `calls ${c.function.name}(${c.function.arguments})`).join("\n")); }
      this.scroll();
    }
    if (chunk.usage) run.tokens = chunk.usage.completion_tokens;
  }

  scroll() { // once for each picture: each time costs a layout
    if (this.scrolls) return;
    this.scrolls = true;
    requestAnimationFrame(() => { this.scrolls = false; this.part("log").scrollTop = this.part("log").scrollHeight; });
  }
}

function gather(calls, parts) {
  parts.forEach((part, position) => {
    const index = part.index ?? position;
    if (!(index >= 0 && index < MOST_CALLS)) return;
    while (calls.length <= index) calls.push({ id: "", type: "function", function: { name: "", arguments: "" } });
    const call = calls[index], said = part.function || {};
    if (part.id) call.id = part.id;
    if (said.name) call.function.name += said.name;
    if (said.arguments) call.function.arguments += said.arguments;
  });
}

function timing(run) {
  if (run.first === undefined) return [];
  const whole = ((run.last - run.began) / 1000).toFixed(2);
  if (!run.streamed) return [`${run.tokens} tokens`, `${whole} s`, rate(run.tokens, run.last - run.began)];
  return [`TTFT ${Math.round(run.first - run.began)} ms`, `${run.tokens} tokens`,
    rate(run.tokens - 1, run.last - run.first), `${whole} s`];
}

const rate = (tokens, ms) => (tokens > 0 && ms > 0 ? `${(tokens * 1000 / ms).toFixed(1)} tokens/s` : "– tokens/s");
