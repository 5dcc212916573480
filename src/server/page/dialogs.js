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

export async function settingsDialog(talk) {
  const s = talk.settings, system = el("textarea", { rows: "3", maxlength: "20000" }, s.system || "");
  const field = (value, a) => el("input", { type: "number", value: value === undefined ? "" : String(value), ...a });
  const temperature = field(s.temperature, { min: "0", max: "2", step: "0.1", placeholder: "1" }), most = field(s.max_tokens, { min: "1", max: "100000", placeholder: "until it ends" }),
    seed = field(s.seed, { min: "0", max: "4294967295", placeholder: "another each time" }), thinking = el("input", { type: "checkbox", checked: s.thinking !== false });
  if (!await show("Settings of this conversation", [el("label", {}, "Instructions for the model", system), el("label", {}, "Temperature (0: always the likeliest word)", temperature),
    el("label", {}, "Tokens of an answer, at most", most), el("label", {}, "Seed", seed), el("label", { class: "line" }, thinking, "Let the model think first, where it can")], "Save")) return;
  const settings = {};
  if (system.value.trim()) settings.system = system.value.trim();
  for (const [k, i] of [["temperature", temperature], ["max_tokens", most], ["seed", seed]]) if (i.value !== "" && i.checkValidity()) settings[k] = Number(i.value);
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
