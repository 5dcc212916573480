// The engine's panel: the live timeline while it is open, and what each mechanism did for the answer that is shown.
import { el } from "./markdown.js";
import { Timeline } from "./timeline.js";

const $ = (id) => document.getElementById(id);

export class Engine {
  constructor(page, events) {
    this.page = page;
    this.events = events;
    this.timeline = new Timeline($("lanes"), $("grid"), $("tip"), $("legend"), $("sums").tBodies[0], $("lost"));
    const t = this.timeline;
    $("tl-fit").addEventListener("click", () => t.fit());
    $("tl-in").addEventListener("click", () => t.zoom(0.7, 0.5));
    $("tl-out").addEventListener("click", () => t.zoom(1.4, 0.5));
    $("tl-left").addEventListener("click", () => t.pan(-0.2));
    $("tl-right").addEventListener("click", () => t.pan(0.2));
    $("tl-colour").addEventListener("click", () => {
      t.byChunk = !t.byChunk;
      $("tl-colour").setAttribute("aria-pressed", String(t.byChunk));
      $("legend").hidden = t.byChunk;
      this.redraw();
    });
    document.addEventListener("visibilitychange", () => { if (this.shown) { if (document.hidden) this.close(); else this.start(); } });
  }

  redraw() { this.timeline.dirty = true; }

  // While nobody looks the server notes nothing: the stream is open only while the panel is.
  async start() {
    this.shown = this.timeline.visible = true;
    this.close();
    const abort = this.abort = new AbortController();
    for (let wait = 500; !abort.signal.aborted; wait = Math.min(wait * 2, 8000)) {
      try {
        for await (const v of this.events("/page/timeline" + (this.model ? "?model=" + encodeURIComponent(this.model) : ""), abort.signal)) { this.timeline.take(v); wait = 500; }
      } catch (e) { if (e.name === "AbortError") return; }
      await new Promise((f) => setTimeout(f, wait));
    }
  }
  // Another model's lanes, where there are several.
  watch(model) {
    if (model === (this.model || "")) return;
    this.model = model;
    if (this.shown && !document.hidden) this.start();
  }
  close() { if (this.abort) this.abort.abort(); }
  stop() { this.shown = this.timeline.visible = false; this.close(); }

  progress(p) {
    if (!p) { $("engine-state").textContent = this.ended || ""; return; }
    this.timeline.show(p);
    const rate = p.decode_s > 0.05 ? `, ${(p.tokens / p.decode_s).toFixed(1)} tokens/s` : "";
    $("engine-state").textContent = p.state === "reading" ? `reading ${p.prompt_tokens - p.cached_tokens} tokens` : p.state === "writing" ? `${p.tokens} tokens${rate}` : p.state;
    this.ended = "";
  }

  // An answer that is complete: its time on the lanes, and what saved how much.
  answer(how) {
    this.timeline.show(how.progress);
    const p = how.progress, list = how.explained || [];
    if (p.state === "done" && p.tokens > 1 && p.decode_s > 0) this.ended = `${p.tokens} tokens, ${((p.tokens - 1) / p.decode_s).toFixed(1)} tokens/s`;
    $("engine-state").textContent = this.ended || "";
    if (!list.length) return;
    $("saved").replaceChildren(...list.map((x) => {
      const saved = x.saved, bar = el("i"), name = el("span", { class: "name" }, x.on ? "● " : "○ ", x.mechanism);
      if (x.on && saved !== undefined) {
        name.append(el("span", { class: "ms" }, `${saved.count} of ${saved.of} ${saved.unit}`));
        bar.style.width = (100 * saved.count / saved.of).toFixed(1) + "%";
      }
      return el("li", { class: x.on ? "on" : "off" }, name, x.on && saved ? el("div", { class: "track" }, bar) : null, el("p", {}, x.text));
    }));
  }
}
