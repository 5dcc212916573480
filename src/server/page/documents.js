// Documents that answers may use, and the passages that an answer was given.
import { el } from "./markdown.js";

export class Documents {
  constructor(page) { this.page = page; document.getElementById("attach").hidden = true; }
  load() { return undefined; }

  sourcesOf(node) {
    return el("details", { class: "sources" }, el("summary", {}, node.sources.length === 1 ? "1 source" : node.sources.length + " sources"),
      el("ol", {}, ...node.sources.map((s) => el("li", {}, el("strong", {}, s.title), s.number ? ` (passage ${s.number})` : "", el("blockquote", {}, s.text)))));
  }
}
