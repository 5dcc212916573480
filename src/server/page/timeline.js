// The live timeline: lanes with tasks on a canvas, the prompt's chunks by layers, and the same as a table.
import { el } from "./markdown.js";

const KINDS = [
  { name: "INT8 products", colour: "#2f6fde", is: /^(qkv|o|ffn|down|gate|up|lm_head|experts( down)?|switch graphs)$/ },
  { name: "attention", colour: "#d9822b", is: /attention|estimate|select|attend/ },
  { name: "norms and the like", colour: "#5fa04a", is: /norm|rope|glu|residual|embed|conv/ },
  { name: "outlier paths", colour: "#8e6bbf", is: /outliers/ },
  { name: "reading", colour: "#7d8894", is: /^read$/ },
  { name: "unpacking, loading", colour: "#c9a800", is: /unpack|load/ },
  { name: "drafts", colour: "#d1477a", is: /draft|verify|calibrate|profile/ },
  { name: "other", colour: "#4fa3a5", is: /./ },
];
const CHUNKS = ["#2f6fde", "#d9822b", "#5fa04a", "#d1477a", "#8e6bbf", "#c9a800", "#4fa3a5", "#b0553a"];
const WRAPS = /^(step|verify|forward)$/; // they enclose what their layers do
const MOST = 24000; // tasks kept of a track

const ms = (us) => (us < 1000 ? us.toFixed(0) + " µs" : us < 1e6 ? (us / 1000).toFixed(us < 1e4 ? 2 : 1) + " ms" : (us / 1e6).toFixed(2) + " s");

export class Timeline {
  constructor(canvas, grid, tip, legend, sums, lost) {
    Object.assign(this, { canvas, grid, tip, legend, sums, lostLabel: lost, byChunk: false, names: {}, kinds: {}, tracks: [], request: null, view: null, picked: null, dirty: true });
    this.now = 0;
    this.at = 0; // when `now` was told
    this.bind();
    const loop = () => { if (this.visible) this.draw(); requestAnimationFrame(loop); };
    requestAnimationFrame(loop);
    new ResizeObserver(() => { this.dirty = true; }).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.dirty = true; });
    legend.append(...KINDS.slice(0, 7).map((k) => { const i = el("i"); i.style.background = k.colour; return el("li", {}, i, k.name); }));
  }

  take(v) {
    if (v.type === "lanes") {
      this.tracks = v.lanes.flatMap((l) => Array.from({ length: l.workers }, (_, i) => ({ label: l.workers > 1 ? l.name + " " + (i + 1) : l.name, lane: l.name, tasks: [] })));
      this.names = {};
    }
    for (const [k, name] of Object.entries(v.names || {})) { this.names[k] = name; this.kinds[k] = KINDS.findIndex((x) => x.is.test(name)); }
    for (let i = 0; v.tasks && i < v.tasks.length; i += 7) {
      const t = this.tracks[v.tasks[i]];
      if (!t) continue;
      t.tasks.push({ s: v.tasks[i + 1], d: v.tasks[i + 2], n: v.tasks[i + 3], chunk: v.tasks[i + 4], layer: v.tasks[i + 5], home: v.tasks[i + 6] });
      if (t.tasks.length > MOST) t.tasks.splice(0, MOST / 4);
    }
    this.now = v.now_us;
    this.at = performance.now();
    if (v.lost) this.lostLabel.textContent = v.lost + " tasks were too many to show";
    this.dirty = true;
  }

  // The request shown: {begin_us, first_us, end_us}, as far as they are known.
  show(request) {
    if (!request || !request.begin_us) return;
    if (!this.request || this.request.begin_us !== request.begin_us) { this.view = null; this.picked = null; this.lostLabel.textContent = ""; }
    this.request = request;
    this.dirty = true;
  }

  clock() { return this.now + (performance.now() - this.at) * 1000; }

  window() {
    if (this.view) return this.view;
    const r = this.request, running = r && !r.end_us;
    if (r) {
      const end = running ? this.clock() : r.end_us, from = running && r.first_us && end - r.begin_us > 2e7 ? end - 2e7 : r.begin_us;
      return [from, Math.max(end, from + 20000)];
    }
    const end = this.clock();
    return [end - 1e7, end];
  }

  bind() {
    const c = this.canvas;
    c.addEventListener("wheel", (e) => { e.preventDefault(); this.zoom(e.deltaY > 0 ? 1.25 : 0.8, e.offsetX / c.clientWidth); }, { passive: false });
    let drag = null;
    c.addEventListener("pointerdown", (e) => { drag = { x: e.offsetX, view: this.window() }; c.setPointerCapture(e.pointerId); });
    c.addEventListener("pointermove", (e) => {
      if (drag && Math.abs(e.offsetX - drag.x) > 3) {
        const by = (drag.x - e.offsetX) / c.clientWidth * (drag.view[1] - drag.view[0]);
        this.view = [drag.view[0] + by, drag.view[1] + by];
        this.dirty = true;
      } else if (!drag) this.pick(this.find(e.offsetX, e.offsetY));
    });
    c.addEventListener("pointerup", () => { drag = null; });
    c.addEventListener("pointerleave", () => { if (!drag) this.pick(null); });
    c.addEventListener("keydown", (e) => {
      const does = { "+": () => this.zoom(0.7, 0.5), "=": () => this.zoom(0.7, 0.5), "-": () => this.zoom(1.4, 0.5), 0: () => this.fit(),
        ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), ".": () => this.walk(1), ",": () => this.walk(-1) }[e.key];
      if (does && !e.ctrlKey && !e.metaKey && !e.altKey) { e.preventDefault(); does(); }
    });
  }

  fit() { this.view = null; this.dirty = true; }
  pan(share) { const [a, b] = this.window(), by = (b - a) * share; this.view = [a + by, b + by]; this.dirty = true; }
  zoom(by, at) {
    const [a, b] = this.window(), mid = a + (b - a) * at, span = Math.min(Math.max((b - a) * by, 50), 6e8);
    this.view = [mid - span * at, mid + span * (1 - at)];
    this.dirty = true;
  }

  pick(task) {
    if (task === this.picked) return;
    this.picked = task;
    this.dirty = true;
    this.tip.textContent = task ? this.tell(task) : "Point at a task, or walk through them with , and .";
  }

  tell(t) {
    const track = this.tracks.find((x) => x.tasks.includes(t)), where = [];
    if (t.chunk >= 0) where.push("chunk " + (t.chunk + 1));
    if (t.layer >= 0) where.push("layer " + (t.layer + 1));
    const home = ["CPU", "Device", "IO"][t.home];
    const helped = track && track.lane !== home && track.lane !== "Request" ? ", taken over from " + home : "";
    const since = this.request ? ", " + ms(t.s - this.request.begin_us) + " after the request began" : "";
    return `${this.names[t.n] || "task"}${where.length ? " (" + where.join(", ") + ")" : ""} on ${track ? track.label : "a lane"}${helped}: ${ms(t.d)}${since}`;
  }

  walk(by) {
    const [a, b] = this.window();
    const all = this.tracks.flatMap((t) => t.tasks).filter((t) => t.s >= a && t.s <= b).sort((x, y) => x.s - y.s);
    if (!all.length) return;
    const i = all.indexOf(this.picked);
    this.pick(all[i < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, i + by))]);
    this.tip.setAttribute("aria-live", "polite");
  }

  geometry() {
    const h = this.canvas.clientHeight, n = Math.max(1, this.tracks.length), top = 20, left = 62;
    return { top, left, row: (h - top - 4) / n, w: this.canvas.clientWidth - left - 4 };
  }

  find(x, y) {
    const g = this.geometry(), track = this.tracks[Math.floor((y - g.top) / g.row)], [a, b] = this.window();
    if (!track || x < g.left) return null;
    const t = a + (x - g.left) / g.w * (b - a), near = (b - a) / g.w * 2;
    let best = null;
    for (const k of track.tasks) if (k.s - near <= t && t <= k.s + k.d + near && (!best || k.d < best.d)) best = k;
    return best;
  }

  colour(t) {
    if (this.byChunk) return t.chunk >= 0 ? CHUNKS[t.chunk % CHUNKS.length] : "#9aa5b1";
    return KINDS[this.kinds[t.n] ?? 7].colour;
  }

  draw() {
    const moving = this.request && !this.request.end_us && !this.view;
    const sums = performance.now() - (this.summed || 0) > 400; // figures are read more slowly than bars
    if (sums && this.unsummed) this.dirty = true;
    if (!this.dirty && !moving) return;
    if (moving && !this.dirty && performance.now() - (this.drawn || 0) < 60) return;
    this.dirty = false;
    this.drawn = performance.now();
    const c = this.canvas, ratio = devicePixelRatio || 1, w = c.clientWidth, h = c.clientHeight, style = getComputedStyle(c);
    if (!w || !h) return;
    if (c.width !== Math.round(w * ratio)) c.width = Math.round(w * ratio);
    if (c.height !== Math.round(h * ratio)) c.height = Math.round(h * ratio);
    const x = c.getContext("2d");
    x.setTransform(ratio, 0, 0, ratio, 0, 0);
    x.clearRect(0, 0, w, h);
    this.drawLanes(x, w, h, style);
    this.unsummed = !sums;
    if (sums) { this.summed = performance.now(); this.sum(); this.drawGrid(ratio, style); }
  }

  drawLanes(x, w, h, style) {
    const g = this.geometry(), [a, b] = this.window(), soft = style.getPropertyValue("--soft"), lane = style.getPropertyValue("--lane"), text = style.getPropertyValue("--text");
    const px = (t) => g.left + (t - a) / (b - a) * g.w, r = this.request;
    x.font = "11px system-ui, sans-serif";
    x.textBaseline = "middle";
    for (let i = 0; i < this.tracks.length; i++) {
      x.fillStyle = lane;
      x.fillRect(g.left, g.top + i * g.row + 2, g.w, g.row - 4);
      x.fillStyle = soft;
      x.fillText(this.tracks[i].label, 6, g.top + (i + 0.5) * g.row);
    }
    this.drawScale(x, g, a, b, soft);
    x.save();
    x.beginPath();
    x.rect(g.left, 0, g.w, h);
    x.clip();
    for (let i = 0; i < this.tracks.length; i++) this.drawTrack(x, this.tracks[i], g.top + i * g.row + 3, g.row - 6, px, a, b, text);
    const marks = r ? [[r.begin_us, "prompt"], [r.first_us, "answer"], [r.end_us, "end"]] : [];
    for (const [i, [t, label]] of marks.entries()) {
      if (!t) continue;
      const next = marks[i + 1] && marks[i + 1][0], fits = !next || px(next) - px(t) > x.measureText(label).width + 8;
      x.fillStyle = text;
      x.fillRect(px(t), g.top, 1, h - g.top);
      x.fillStyle = soft;
      if (label !== "end" && fits) x.fillText(label, px(t) + 4, h - 10);
    }
    x.restore();
  }

  drawScale(x, g, a, b, soft) {
    const step = [50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 3e7, 6e7, 3e8].find((s) => (b - a) / s < Math.max(2, g.w / 75)) || 6e8;
    const from = this.request ? this.request.begin_us : a;
    x.fillStyle = soft;
    for (let t = from + Math.ceil((a - from) / step) * step; t < b; t += step) {
      const at = g.left + (t - a) / (b - a) * g.w;
      x.globalAlpha = 0.35;
      x.fillRect(at, g.top - 4, 1, 4);
      x.globalAlpha = 1;
      if (at < g.left + g.w - 40) x.fillText(t === from ? "0" : ms(t - from), at + 2, 9);
    }
  }

  drawTrack(x, track, y, h, px, a, b, text) {
    const own = track.lane === "Request";
    let lastX = -1, lastColour = "";
    for (const t of track.tasks) {
      if (t.s + t.d < a || t.s > b) continue;
      const wraps = own && WRAPS.test(this.names[t.n]), from = px(t.s), width = Math.max(1, px(t.s + t.d) - from), colour = this.colour(t);
      if (width <= 1 && Math.floor(from) === lastX && colour === lastColour && t !== this.picked) continue;
      lastX = Math.floor(from);
      lastColour = colour;
      x.fillStyle = colour;
      if (wraps) { x.fillRect(from, y, Math.max(1, width - 1), 4); continue; }
      const top = own ? y + 6 : y, tall = own ? h - 6 : h;
      x.fillRect(from, top, width > 3 ? width - 0.6 : width, tall);
      if (["CPU", "Device", "IO"][t.home] !== track.lane && !own && width > 2) { x.fillStyle = "#0006"; x.fillRect(from, top + tall - 4, width - 0.6, 4); }
      if (width > 44) {
        x.save();
        x.beginPath();
        x.rect(from, top, width, tall);
        x.clip();
        x.fillStyle = "#fff";
        x.fillText((this.names[t.n] || "") + (t.layer >= 0 ? " " + (t.layer + 1) : ""), from + 4, top + tall / 2);
        x.restore();
      }
      if (t === this.picked) { x.strokeStyle = text; x.lineWidth = 2; x.strokeRect(from, top, Math.max(3, width), tall); }
    }
  }

  // Chunks by layers: how many of a cell's kinds of tasks have begun to be done.
  drawGrid(ratio, style) {
    const cells = new Map(), c = this.grid;
    let chunks = 0, layers = 0, most = 1;
    for (const track of this.tracks) for (const t of track.tasks) {
      if (t.chunk < 0 || t.layer < 0 || this.kinds[t.n] === 4 || this.kinds[t.n] === 5 || (this.request && t.s < this.request.begin_us) || (this.request && this.request.end_us && t.s > this.request.end_us)) continue;
      const k = t.chunk * 4096 + t.layer, cell = cells.get(k) || { names: new Set(), end: 0 };
      cell.names.add(t.n);
      cell.end = Math.max(cell.end, t.s + t.d);
      cells.set(k, cell);
      chunks = Math.max(chunks, t.chunk + 1);
      layers = Math.max(layers, t.layer + 1);
      most = Math.max(most, cell.names.size);
    }
    c.parentElement.hidden = !chunks;
    if (!chunks) return;
    const row = Math.max(10, Math.min(22, 130 / chunks)), h = Math.round(chunks * row + 20), w = c.clientWidth, left = 62;
    if (c.style.height !== h + "px") c.style.height = h + "px";
    c.width = Math.round(w * ratio);
    c.height = Math.round(h * ratio);
    const x = c.getContext("2d"), cell = (w - left - 6) / layers, now = this.clock();
    x.setTransform(ratio, 0, 0, ratio, 0, 0);
    x.font = "11px system-ui, sans-serif";
    x.textBaseline = "middle";
    for (let i = 0; i < chunks; i++) {
      x.fillStyle = style.getPropertyValue("--soft");
      if (row >= 12 || i % 4 === 0) x.fillText("chunk " + (i + 1), 6, 4 + (i + 0.5) * row);
      for (let l = 0; l < layers; l++) {
        const v = cells.get(i * 4096 + l);
        x.fillStyle = style.getPropertyValue("--lane");
        x.fillRect(left + l * cell, 4 + i * row, cell - 1, row - 1);
        if (!v) continue;
        x.globalAlpha = 0.25 + 0.75 * (v.names.size / most);
        x.fillStyle = CHUNKS[i % CHUNKS.length];
        x.fillRect(left + l * cell, 4 + i * row, (cell - 1) * (v.names.size / most), row - 1);
        x.globalAlpha = 1;
        if (now - v.end < 250000 && this.request && !this.request.end_us) { x.strokeStyle = style.getPropertyValue("--text"); x.lineWidth = 1.5; x.strokeRect(left + l * cell, 4 + i * row, cell - 1, row - 1); }
      }
    }
    x.fillStyle = style.getPropertyValue("--soft");
    x.fillText("layer 1", left, h - 7);
    if (layers > 1) { x.textAlign = "right"; x.fillText("layer " + layers, w - 6, h - 7); x.textAlign = "left"; }
    const done = [...cells.values()].filter((v) => v.names.size === most).length;
    c.setAttribute("aria-label", `${chunks} chunks of the prompt by ${layers} layers: ${done} of ${chunks * layers} complete`);
  }

  // The same in words and figures, of the request shown.
  sum() {
    const r = this.request, a = r ? r.begin_us : this.clock() - 1e7, b = r && r.end_us ? r.end_us : this.clock();
    const rows = this.tracks.map((t) => {
      const by = new Map();
      let busy = 0;
      for (const k of t.tasks) {
        if (k.s < a || k.s > b || (t.lane === "Request" && WRAPS.test(this.names[k.n]) && k.layer >= 0)) continue;
        if (t.lane === "Request" && WRAPS.test(this.names[k.n])) { busy += k.d; continue; }
        if (t.lane !== "Request") busy += k.d;
        by.set(k.n, (by.get(k.n) || 0) + k.d);
      }
      const most = [...by].sort((x, y) => y[1] - x[1]).slice(0, 3).map(([n, d]) => `${this.names[n]} ${ms(d)}`).join(", ");
      return el("tr", {}, el("th", { scope: "row" }, t.label), el("td", {}, b > a ? Math.min(100, 100 * busy / (b - a)).toFixed(0) + " %" : ""), el("td", {}, most || "nothing"));
    });
    this.sums.replaceChildren(...rows);
  }
}
