// Pictures that go with a question: chosen, dropped, pasted or taken; and how a conversation shows them.
import { el } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const MOST = 4, LONGEST = 2048, LARGEST = 1400000; // of a question; pixels; characters of the address that it is sent as
const PLAIN = new Set(["image/png", "image/jpeg", "image/webp"]);

const asUrl = (blob) => new Promise((done, fail) => {
  const r = new FileReader();
  r.onload = () => done(r.result);
  r.onerror = () => fail(new Error("it cannot be read"));
  r.readAsDataURL(blob);
});

// As it is where that is small, else smaller: the model looks at no more than about 2048 pixels of a side.
async function prepared(file) {
  let bitmap;
  try { bitmap = await createImageBitmap(file); } catch { throw new Error("it is no picture that this browser can show"); }
  if (PLAIN.has(file.type) && Math.max(bitmap.width, bitmap.height) <= LONGEST && file.size * 4 / 3 < LARGEST) return asUrl(file);
  for (let longest = LONGEST, quality = 0.92; ; longest *= 0.8, quality = 0.85) {
    const scale = Math.min(1, longest / Math.max(bitmap.width, bitmap.height)), canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    const c = canvas.getContext("2d");
    c.fillStyle = "#fff";
    c.fillRect(0, 0, canvas.width, canvas.height);
    c.imageSmoothingQuality = "high";
    c.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const url = canvas.toDataURL("image/jpeg", quality);
    if (url.length <= LARGEST) return url;
  }
}

export const isPicture = (file) => file.type.startsWith("image/");

// Those of a question that was asked. The address is the conversation's own and no link.
export const shown = (images) => images.map((url, i) => el("img", { class: "picture", src: url, alt: images.length > 1 ? `Picture ${i + 1} of the question` : "Picture of the question", loading: "lazy" }));

export class Pictures {
  constructor(page) {
    Object.assign(this, { page, chosen: [] });
    $("look").addEventListener("click", () => $("shots").click());
    $("shots").addEventListener("change", () => { this.add([...$("shots").files]); $("shots").value = ""; });
  }

  can() { const m = this.page.model(); return Boolean(m && m.meta && m.meta.sees); }
  show() {
    $("look").hidden = !this.can();
    $("pictures").hidden = !this.chosen.length;
    $("pictures").replaceChildren(...this.chosen.map((p) => el("li", {}, el("img", { src: p.url, alt: p.name }),
      el("button", { type: "button", "aria-label": "Remove " + p.name, title: "Remove it", on: { click: () => { this.chosen = this.chosen.filter((x) => x !== p); this.show(); $("box").focus(); } } }, "✕"))));
  }

  async add(files) {
    for (const f of files) {
      try {
        if (!this.can()) throw new Error("this model does not see");
        if (this.chosen.length >= MOST) throw new Error(`a question has up to ${MOST} pictures`);
        this.chosen.push({ name: f.name || "picture", url: await prepared(f) });
        this.page.say((f.name || "A picture") + " goes with the next question.");
        this.page.banner("", "picture");
      } catch (e) { this.page.banner(`${f.name || "The picture"} cannot be added: ${e.message}.`, "picture"); }
    }
    this.show();
    $("box").focus();
  }

  // What the next question carries; it is the caller's to give back where that fails.
  take() { const urls = this.chosen; this.chosen = []; this.show(); return urls; }
  giveBack(taken) { this.chosen = [...taken, ...this.chosen].slice(0, MOST); this.show(); }
}
