// Questions to the person, in one dialog; and the server's figures.
import { text } from "./api.js";
import { el } from "./markdown.js";

const dialog = document.getElementById("dialog"), $ = (id) => document.getElementById(id);
let ended = () => {}; // gives the question that is shown its answer

function show(title, body, ok, cancel = "Cancel", danger = false) {
  $("dialog-title").textContent = title;
  $("dialog-body").replaceChildren(...body);
  $("dialog-ok").textContent = ok;
  $("dialog-ok").classList.toggle("danger", danger);
  $("dialog-ok").classList.toggle("primary", !danger);
  $("dialog-cancel").hidden = !cancel;
  return new Promise((done) => {
    const back = document.activeElement;
    ended();
    ended = (said = false) => {
      ended = () => {};
      done(said);
      if (!dialog.open && back && back.isConnected && back.offsetParent) back.focus();
    };
    dialog.returnValue = "";
    dialog.showModal();
    const first = $("dialog-body").querySelector("input, textarea");
    (first || (danger ? $("dialog-cancel") : $("dialog-ok"))).focus();
  });
}
// A browser tells of a closing a while after it: the next question may stand there already, and it is not the one that ended.
dialog.addEventListener("close", () => { if (!dialog.open) ended(dialog.returnValue === "ok"); });
// Enter in a field means OK, not the first button of the form.
dialog.addEventListener("keydown", (e) => { if (e.key === "Enter" && e.target.tagName === "INPUT") { e.preventDefault(); dialog.close("ok"); } });

export function confirm(title, words, ok) { return show(title, [el("p", {}, words)], ok, "Cancel", true); }

export async function askFor(title, label, value, type = "text") {
  const input = el("input", { type, value: value || "", autocomplete: "off", maxlength: "200" });
  return await show(title, [el("label", {}, label, input)], "OK") ? input.value.trim() : null;
}

export function tell(title, rows) {
  return show(title, [el("dl", {}, ...rows.flatMap(([k, v]) => [el("dt", {}, el("kbd", {}, k)), el("dd", {}, v)]))], "Close", null);
}

// How words are drawn. A preset fills in the fields; what is empty is the server's.
const PRESETS = { server: ["As the server has it", {}], exact: ["Exact: always the likeliest word", { temperature: 0 }], careful: ["Careful: facts, code", { temperature: 0.3, top_p: 0.9, top_k: 40, min_p: 0.05 }],
  even: ["Even: conversation", { temperature: 0.7, top_p: 0.95, top_k: 40, min_p: 0.05 }], free: ["Free: stories, ideas", { temperature: 1.1, top_p: 1, top_k: 0, min_p: 0.05 }] };
const DRAWN = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty"];

function presets(fields) {
  const select = el("select", {}, ...Object.entries(PRESETS).map(([k, [name]]) => el("option", { value: k }, name)), el("option", { value: "own" }, "Own values"));
  const show = () => {
    const is = (p) => DRAWN.every((k) => fields[k].value === (p[k] === undefined ? "" : String(p[k])));
    select.value = (Object.entries(PRESETS).find(([, [, p]]) => is(p)) || ["own"])[0];
  };
  select.addEventListener("change", () => {
    const chosen = PRESETS[select.value];
    if (chosen) for (const k of DRAWN) fields[k].value = chosen[1][k] === undefined ? "" : String(chosen[1][k]);
  });
  for (const k of DRAWN) fields[k].addEventListener("input", show);
  show();
  return select;
}

export async function settingsDialog(talk) {
  const s = talk.settings, system = el("textarea", { rows: "3", maxlength: "20000", dir: "auto" }, s.system || "");
  const field = (value, a) => el("input", { type: "number", value: value === undefined ? "" : String(value), placeholder: "the server’s", ...a });
  const drawn = { temperature: field(s.temperature, { min: "0", max: "2", step: "0.1" }), top_p: field(s.top_p, { min: "0", max: "1", step: "0.01" }), top_k: field(s.top_k, { min: "0", max: "1000", step: "1" }),
    min_p: field(s.min_p, { min: "0", max: "0.99", step: "0.01" }), repeat_penalty: field(s.repeat_penalty, { min: "0.5", max: "2", step: "0.01" }) };
  const labels = { temperature: "Temperature", top_p: "Top-p", top_k: "Top-k", min_p: "Min-p", repeat_penalty: "Repeat penalty" }, preset = presets(drawn), most = field(s.max_tokens, { min: "1", max: "100000", placeholder: "until it ends" }),
    seed = field(s.seed, { min: "0", max: "4294967295", placeholder: "another each time" }), thinking = el("input", { type: "checkbox", checked: s.thinking !== false });
  if (!await show("Settings of this conversation", [el("label", {}, "Instructions for the model", system), el("label", {}, "How words are drawn", preset), el("div", { class: "fields" }, ...DRAWN.map((k) => el("label", {}, labels[k], drawn[k]))),
    el("label", {}, "Tokens of an answer, at most", most), el("label", {}, "Seed", seed), el("label", { class: "line" }, thinking, "Let the model think first, where it can")], "Save")) return;
  const settings = {};
  if (system.value.trim()) settings.system = system.value.trim();
  for (const [k, i] of [...Object.entries(drawn), ["max_tokens", most], ["seed", seed]]) if (i.value !== "" && i.checkValidity()) settings[k] = Number(i.value);
  if (!thinking.checked) settings.thinking = false;
  if (s.model) settings.model = s.model;
  await talk.keepSettings(settings);
}

export async function figures() {
  const rows = (await text("/metrics")).split("\n").filter((l) => l && l[0] !== "#").map((l) => {
    const at = l.lastIndexOf(" "), name = l.slice(0, at).replace(/^tern_/, "").replace(/_total/, "").replace(/[{]\w+="([^"]*)"[}]/, " $1").replaceAll("_", " "), value = Number(l.slice(at + 1));
    return el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value.toLocaleString("en", { maximumFractionDigits: 3 })));
  });
  return show("Server figures", [el("table", { class: "figures" }, ...rows), el("p", { class: "quiet" }, "The same for Prometheus: /metrics")], "Close", null);
}
