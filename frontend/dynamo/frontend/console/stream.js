// Follows a stream of snapshots while somebody looks; returns how to begin anew.
import { ask, askForKey, events, keyKnown, needsKey, problem, say } from "./page.js";

const AGAIN = 1000, LATEST = 15000, SILENCE = 25000;

export function follow(path, show) {
  let stream = null, timer = 0, wait = AGAIN;

  function close() { clearTimeout(timer); if (stream) stream.abort(); stream = null; }

  async function open() {
    clearTimeout(timer);
    if (document.hidden || stream || needsKey()) return;
    const mine = stream = new AbortController();
    let silent = setTimeout(() => mine.abort(), SILENCE);
    const alive = () => { clearTimeout(silent); silent = setTimeout(() => mine.abort(), SILENCE); };
    let why = "The server doesn't answer; trying again.", showing = false;
    try {
      const reply = await ask(path, { signal: mine.signal });
      if (!reply.ok) { why = await problem(reply); throw new Error(why); }
      keyKnown();
      await events(reply, (data) => { wait = AGAIN; showing = true; show(JSON.parse(data)); showing = false; }, alive);
      why = "";
    } catch (error) {
      if (error.status === 401) why = "";
      else if (showing) why = `The page can't show this: ${error.message}`;
      else if (error.name === "Error") why = error.message;
    }
    clearTimeout(silent);
    if (stream !== mine) return; // closed by us
    stream = null;
    if (needsKey()) { askForKey(false); return; }
    if (why) say(why, true);
    timer = setTimeout(open, wait * (0.5 + Math.random() / 2)); // not all pages at once
    wait = Math.min(LATEST, wait * 2);
  }

  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
  open();
  return () => { close(); open(); };
}
