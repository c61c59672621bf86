"use strict";
(() => {
  const KEY = "dynamo-console-key", EVERY = 2000, DEADLINE = 10000, MOST_TURNS = 200, MOST_ROWS = 256;
  const at = (id) => document.getElementById(id);
  const kinds = new Map(); // model -> "chat" or "completions", once known
  const types = new Map(); // model -> what /v1/models says of it
  let turns = [], running = null, timer = 0, polling = false;

  const stored = () => { try { return sessionStorage.getItem(KEY) || ""; } catch { return ""; } };
  let key = stored();
  const headers = (more) => ({ ...(key ? { authorization: `Bearer ${key}` } : {}), ...more });
  const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const make = (tag, text, name) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    return element;
  };

  function askForKey(wrong) {
    if (!at("key-form").hidden && !wrong) return;
    const first = at("key-form").hidden;
    at("key-form").hidden = false;
    put(at("key-note"), wrong ? "The server doesn't know this key. Try another one."
      : "This server asks for a key. It stays in this tab until you close it.");
    say("an API key is needed", true);
    if (first) at("key").focus();
  }

  function say(text, bad) { put(at("state"), text); at("state").classList.toggle("bad", Boolean(bad)); }

  async function get(path) {
    const answer = await fetch(path, { headers: headers(), cache: "no-store", credentials: "omit",
      signal: AbortSignal.timeout(DEADLINE) });
    if (answer.status === 401) { askForKey(Boolean(key)); throw new Error("401"); }
    if (!answer.ok) throw Object.assign(new Error(`HTTP ${answer.status}`), { status: answer.status });
    return answer.json();
  }

  // Models and workers

  async function refresh() {
    clearTimeout(timer);
    if (document.hidden || polling) return;
    polling = true;
    try {
      const [models, workers] = await Promise.all([get("v1/models"), get("console/workers")]);
      at("key-form").hidden = true;
      showModels(models.data.slice(0, MOST_ROWS));
      showWorkers(workers);
      say(`${models.data.length} model(s), ${workers.total} worker(s)`);
    } catch (error) {
      if (error.message !== "401") say("The server doesn't answer; trying again.", true);
    }
    polling = false;
    const waits = !at("key-form").hidden; // nothing changes until a key is typed, so nothing is asked
    if (!document.hidden && !waits) timer = setTimeout(refresh, EVERY);
  }

  function rows(body, lines, empty) {
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
        cell.className = text === "ready" ? "good" : text === "away" ? "bad" : "";
      });
    });
  }

  function showModels(models) {
    rows(at("models"), models.map((m) => [m.id, (m.types || []).join(", "), m.context_window ?? "–"]), "No model yet.");
    types.clear();
    models.forEach((m) => types.set(m.id, m.types || ["chat"]));
    const select = at("model"), names = models.filter((m) => speaks(m.id)).map((m) => m.id);
    if (names.join("\n") === [...select.options].map((o) => o.value).join("\n")) return;
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => {
      const option = make("option", name);
      option.value = name;
      return option;
    }));
    if (names.includes(chosen)) select.value = chosen;
    chooseModel();
  }

  function showWorkers(answer) {
    rows(at("workers"), answer.workers.map((w) => [w.id, w.role === "prefill" ? `${w.model} (prefill)` : w.model, w.state,
      w.in_flight, w.running, w.queue, w.kv_usage === null ? "–" : `${Math.round(w.kv_usage * 100)} %`]), "No worker yet.");
    const more = answer.total - answer.workers.length;
    put(at("workers-note"), (more > 0 ? `${more} more worker(s) aren't listed. ` : "")
      + "In flight: requests of this frontend process. Running, queue and KV: as the worker says.");
  }

  const speaks = (name) => { const t = types.get(name) || []; return t.includes("chat") || t.includes("completions"); };

  async function chooseModel() {
    const name = at("model").value;
    if (name && !kinds.has(name)) {
      let kind = types.get(name).includes("chat") ? "chat" : "completions";
      if (kind === "chat") {
        try {
          const about = await get(`tokenizer_info?model=${encodeURIComponent(name)}`);
          // Simulated models have the tokenizer of bytes and no template, and chat all the same.
          if (about.chat_template === null && about.tokenizer_class !== "ByteTokenizer") kind = "completions";
        } catch (error) {
          if (error.status === undefined) { showKind(); return; } // nobody answered: asked again later
        }
      }
      kinds.set(name, kind);
    }
    showKind();
  }

  function showKind() {
    const chat = kindNow() === "chat";
    at("system-row").hidden = !chat;
    at("base-note").hidden = chat;
    showCurl();
  }

  // The request

  const kindNow = () => kinds.get(at("model").value) || "chat";
  const path = () => (kindNow() === "chat" ? "v1/chat/completions" : "v1/completions");

  function body(text) {
    const asked = { model: at("model").value };
    if (kindNow() === "chat") {
      const system = at("system").value.trim();
      asked.messages = [...(system ? [{ role: "system", content: system }] : []), ...turns, { role: "user", content: text }];
    } else asked.prompt = text;
    const most = parseInt(at("max-tokens").value, 10), heat = parseFloat(at("temperature").value);
    if (most > 0) asked.max_tokens = most;
    if (Number.isFinite(heat)) asked.temperature = heat;
    if (at("stream").checked) { asked.stream = true; asked.stream_options = { include_usage: true }; }
    return asked;
  }

  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

  function showCurl(asked) {
    const about = asked || body(at("prompt").value || "Hello!");
    const shown = key ? " \\\n  -H \"Authorization: Bearer $API_KEY\"" : "";
    put(at("curl"), `curl -N ${quoted(new URL(path(), document.baseURI.split(/[?#]/)[0]).href)} \\\n  `
      + `-H 'content-type: application/json'${shown} \\\n  -d ${quoted(JSON.stringify(about))}`);
  }

  function entry(who, text) {
    const article = make("article"), about = make("p", "", "about"), thought = make("p", "", "text thought");
    const said = make("p", text, "text");
    article.append(make("h3", who), thought, said, about);
    at("log").hidden = false;
    at("log").append(article);
    while (at("log").children.length > MOST_TURNS) at("log").firstElementChild.remove();
    at("log").scrollTop = at("log").scrollHeight;
    return { article, said, thought, about };
  }

  async function send() {
    const text = at("prompt").value;
    if (running || !at("model").value || !text.trim()) return;
    if (!at("chat-form").reportValidity()) return;
    const asked = body(text), chat = kindNow() === "chat";
    showCurl(asked);
    entry(chat ? "You" : "Prompt", text);
    const shown = entry(asked.model, ""), run = { stop: new AbortController(), began: performance.now(), tokens: 0 };
    const mine = turns; // another list by now: cleared, or another model
    running = run;
    shown.article.setAttribute("aria-busy", "true");
    at("prompt").value = "";
    at("send").disabled = true; at("stop").disabled = false;
    put(at("figures"), "Waiting for the first token…");
    let ending = "";
    try {
      await answer(asked, run, shown);
    } catch (error) {
      ending = run.stop.signal.aborted ? "stopped" : error.message || "the connection broke";
      if (!run.stop.signal.aborted) shown.about.classList.add("bad");
    }
    running = null;
    shown.article.removeAttribute("aria-busy");
    at("send").disabled = false; at("stop").disabled = true;
    const figures = [...timing(run), ...(ending ? [ending] : [])].join(" · ");
    put(shown.about, figures);
    put(at("figures"), figures);
    const said = shown.said.textContent;
    if (chat && said && turns === mine) turns.push({ role: "user", content: text }, { role: "assistant", content: said });
    if (turns.length > MOST_TURNS) turns = turns.slice(-MOST_TURNS);
    if (!said && ending && !at("prompt").value) at("prompt").value = text;
    at("prompt").focus();
  }

  function timing(run) {
    if (run.first === undefined) return [];
    const whole = ((run.last - run.began) / 1000).toFixed(2);
    if (!run.streamed) return [`${run.tokens} tokens`, `${whole} s`, rate(run.tokens, run.last - run.began)];
    return [`TTFT ${Math.round(run.first - run.began)} ms`, `${run.tokens} tokens`,
      rate(run.tokens - 1, run.last - run.first), `${whole} s`];
  }

  const rate = (tokens, ms) => (tokens > 0 && ms > 0 ? `${(tokens * 1000 / ms).toFixed(1)} tokens/s` : "– tokens/s");

  async function answer(asked, run, shown) {
    const reply = await fetch(path(), { method: "POST", body: JSON.stringify(asked), signal: run.stop.signal,
      headers: headers({ "content-type": "application/json" }), credentials: "omit" });
    if (reply.status === 401) askForKey(Boolean(key));
    if (!reply.ok) throw new Error(await problem(reply));
    if (asked.stream) { run.streamed = true; await read(reply, run, shown); return; }
    const whole = await reply.json();
    run.first = run.last = performance.now();
    take(whole, run, shown, whole.choices[0].message || whole.choices[0]);
  }

  async function problem(reply) {
    try { return (await reply.json()).error.message; } catch { return `HTTP ${reply.status}`; }
  }

  async function read(reply, run, shown) {
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Error("the stream was cut before its end");
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        const choice = (chunk.choices || [])[0];
        take(chunk, run, shown, choice ? choice.delta || choice : {});
      }
    }
  }

  function take(chunk, run, shown, part) {
    const thought = part.reasoning_content || "", text = part.content ?? part.text ?? "";
    const called = part.tool_calls ? JSON.stringify(part.tool_calls) : "";
    if (thought || text || called) {
      run.last = performance.now();
      run.first ??= run.last;
      run.tokens += 1; // until the usage is known
      if (thought) shown.thought.append(thought);
      if (text || called) shown.said.append(text + called);
      scroll();
    }
    if (chunk.usage) run.tokens = chunk.usage.completion_tokens;
  }

  let scrolls = false; // once for each picture: each time costs a layout
  function scroll() {
    if (scrolls) return;
    scrolls = true;
    requestAnimationFrame(() => { scrolls = false; at("log").scrollTop = at("log").scrollHeight; });
  }

  const stop = () => { if (running) running.stop.abort(); };

  // Events

  at("chat-form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  at("chat-form").addEventListener("input", () => showCurl());
  at("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
  at("stop").addEventListener("click", stop);
  function clear() {
    stop();
    turns = [];
    at("log").replaceChildren();
    at("log").hidden = true;
    put(at("figures"), "");
    showCurl();
  }
  at("clear").addEventListener("click", () => { clear(); at("prompt").focus(); });
  at("model").addEventListener("change", () => { clear(); chooseModel(); }); // it has seen nothing of the other's
  at("copy").addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(at("curl").textContent); put(at("figures"), "Copied."); }
    catch { getSelection().selectAllChildren(at("curl")); put(at("figures"), "Selected: copy it with your keyboard."); }
  });
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    key = at("key").value.trim();
    if (!/^[!-~]*$/.test(key)) { key = ""; askForKey(true); return; } // no header can hold it
    try { sessionStorage.setItem(KEY, key); } catch { /* kept by this page only */ }
    at("key").value = "";
    at("key-form").hidden = true;
    kinds.clear();
    refresh();
    at("prompt").focus();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  showCurl();
  refresh();
})();
