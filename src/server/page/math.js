// TeX's mathematics as MathML, as models write it: fractions, roots, indices, sums, matrices, Greek and the usual signs. What it does not know it
// gives back as null, and the words are shown as they were written. Text becomes text nodes and nothing else.
const NS = "http://www.w3.org/1998/Math/MathML";
const MOST = 4000, DEPTH = 40;

function m(name, attributes, ...children) {
  const e = document.createElementNS(NS, name);
  for (const [k, v] of Object.entries(attributes || {})) if (v !== undefined) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

const pairs = (words, signs) => Object.fromEntries(words.split(" ").map((w, i) => [w, [...signs][i]]));
const GREEK = pairs("alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi varpi rho varrho sigma varsigma tau upsilon phi varphi chi psi omega " +
  "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega infty partial nabla hbar ell Re Im aleph emptyset varnothing forall exists nexists imath jmath wp top bot angle triangle square",
  "αβγδϵεζηθϑικλμνξπϖρϱσςτυϕφχψωΓΔΘΛΞΠΣΥΦΨΩ∞∂∇ℏℓℜℑℵ∅∅∀∃∄ıȷ℘⊤⊥∠△□");
const SIGNS = pairs("times cdot div pm mp ast star circ bullet oplus otimes odot cup cap setminus wedge vee land lor neg lnot leq le geq ge neq ne equiv approx sim simeq cong propto ll gg prec succ " +
  "subset supset subseteq supseteq in notin ni to rightarrow leftarrow leftrightarrow Rightarrow Leftarrow Leftrightarrow mapsto implies iff uparrow downarrow perp parallel mid colon " +
  "cdots ldots dots vdots ddots therefore because langle rangle lfloor rfloor lceil rceil lVert rVert Vert lvert rvert vert backslash prime dagger vdash models hookrightarrow longrightarrow",
  "×⋅÷±∓∗⋆∘∙⊕⊗⊙∪∩∖∧∨∧∨¬¬≤≤≥≥≠≠≡≈∼≃≅∝≪≫≺≻⊂⊃⊆⊇∈∉∋→→←↔⇒⇐⇔↦⟹⟺↑↓⊥∥∣:⋯……⋮⋱∴∵⟨⟩⌊⌋⌈⌉‖‖‖||∣\\′†⊢⊨↪⟶");
const LARGE = pairs("sum prod coprod int iint iiint oint bigcup bigcap bigoplus bigotimes bigvee bigwedge", "∑∏∐∫∬∭∮⋃⋂⨁⨂⋁⋀");
const NAMES = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp lim limsup liminf max min sup inf det dim ker deg gcd arg argmax argmin Pr mod softmax".split(" "));
const BELOW = new Set("lim limsup liminf max min sup inf det argmax argmin Pr".split(" "));
const ACCENTS = pairs("hat widehat bar overline vec dot ddot tilde widetilde overbrace overrightarrow", "^^¯¯→˙¨~~⏞→");
const SPACES = { ",": "0.17em", ":": "0.22em", ";": "0.28em", "!": "-0.17em", " ": "0.33em", quad: "1em", qquad: "2em" };
const FONTS = { mathbf: "bold", boldsymbol: "bold", bm: "bold", mathbb: "double-struck", mathcal: "script", mathscr: "script", mathfrak: "fraktur", mathsf: "sans", mathrm: "normal", mathit: "italic", operatorname: "normal", text: "text", textbf: "text", textit: "text", textrm: "text", mathtt: "mono", mbox: "text" };
const MATRICES = { matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"], cases: ["{", ""], aligned: ["", ""], align: ["", ""], "align*": ["", ""], gathered: ["", ""], array: ["", ""], split: ["", ""], smallmatrix: ["", ""], equation: ["", ""], "equation*": ["", ""] };
const STARTS = { bold: [0x1d400, 0x1d41a, 0x1d7ce], "double-struck": [0x1d538, 0x1d552, 0x1d7d8], script: [0x1d49c, 0x1d4b6], fraktur: [0x1d504, 0x1d51e], sans: [0x1d5a0, 0x1d5ba, 0x1d7e2], mono: [0x1d670, 0x1d68a, 0x1d7f6] };
const HOLES = pairs("ℬ ℰ ℱ ℋ ℐ ℒ ℳ ℛ", "BEFHILMR"), EARLIER = { script: Object.fromEntries(Object.entries(HOLES).map(([k, v]) => [v, k])), "double-struck": pairs("C H N P Q R Z", "ℂℍℕℙℚℝℤ"), fraktur: pairs("C H I R Z", "ℭℌℑℜℨ") };

// Letters of a font are characters of their own: MathML Core has no other way.
function dressed(text, font) {
  return [...text].map((c) => {
    const starts = STARTS[font], code = c.charCodeAt(0);
    if (!starts) return c;
    if (EARLIER[font] && EARLIER[font][c]) return EARLIER[font][c];
    if (c >= "A" && c <= "Z") return String.fromCodePoint(starts[0] + code - 65);
    if (c >= "a" && c <= "z") return String.fromCodePoint(starts[1] + code - 97);
    return c >= "0" && c <= "9" && starts[2] ? String.fromCodePoint(starts[2] + code - 48) : c;
  }).join("");
}

class Unknown extends Error {}

class Reader {
  constructor(source) { this.tokens = source.match(/\\[a-zA-Z]+\*?|\\[\s\S]|[\s\S]/gu) || []; this.at = 0; this.depth = 0; }
  skip() { while (/^\s$/.test(this.tokens[this.at] || "")) this.at++; }
  look() { this.skip(); return this.tokens[this.at]; }
  take() { this.skip(); return this.tokens[this.at++]; }
  want(t) { if (this.take() !== t) throw new Unknown(t); }

  // Words as they stand between braces.
  words() {
    this.want("{");
    let out = "";
    for (let level = 1; ; this.at++) {
      const t = this.tokens[this.at];
      if (t === undefined) throw new Unknown("}");
      if (t === "{") level++;
      if (t === "}" && !--level) { this.at++; return out; }
      out += /^\\[^a-zA-Z]$/.test(t) ? t[1] : t;
    }
  }

  row(ends) {
    const out = [];
    if (++this.depth > DEPTH) throw new Unknown("too deep");
    for (let t; (t = this.look()) !== undefined && !ends.includes(t);) {
      const one = this.scripted();
      if (one) out.push(one);
    }
    this.depth--;
    return out.length === 1 ? out[0] : m("mrow", {}, ...out);
  }
  group() {
    if (++this.depth > DEPTH) throw new Unknown("too deep");
    let out;
    if (/^[0-9]$/.test(this.look() || "")) out = m("mn", {}, this.take()); // \frac12 is a half
    else if (this.look() !== "{") out = this.atom() || m("mrow");
    else {
      this.at++;
      out = this.row(["}"]);
      this.want("}");
    }
    this.depth--;
    return out;
  }

  scripted() {
    const limits = BELOW.has((this.look() || "").slice(1)) || (LARGE[(this.look() || "").slice(1)] && !/int$/.test(this.look()));
    let base = this.atom(), below, above, primes = "";
    for (let t; (t = this.look()) === "_" || t === "^" || t === "'" || t === "\\limits" || t === "\\nolimits";) {
      this.at++;
      if (t === "'") primes += "′";
      else if (t === "_" && !below) below = this.group();
      else if (t === "^" && !above) above = this.group();
      else if (t === "_" || t === "^") throw new Unknown("twice " + t);
    }
    if (primes) above = above ? m("mrow", {}, m("mo", {}, primes), above) : m("mo", {}, primes);
    if (!below && !above) return base;
    base = base || m("mrow");
    const [u, o, uo] = limits ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    return below && above ? m(uo, {}, base, below, above) : below ? m(u, {}, base, below) : m(o, {}, base, above);
  }

  delimiter() {
    const t = this.take(), name = (t || "").slice(1);
    if (t === ".") return "";
    if (t === "\\{" || t === "\\}") return name;
    if (t === "\\|") return "‖";
    if (t && t.length === 1) return t;
    if (SIGNS[name]) return SIGNS[name];
    throw new Unknown(t);
  }

  fenced() {
    const open = this.delimiter(), inside = [];
    if (++this.depth > DEPTH) throw new Unknown("too deep");
    for (;;) {
      inside.push(this.row(["\\right", "\\middle"]));
      if (this.take() !== "\\middle") break;
      inside.push(m("mo", { fence: "true", stretchy: "true" }, this.delimiter()));
    }
    this.depth--;
    if (this.tokens[this.at - 1] !== "\\right") throw new Unknown("\\right");
    const close = this.delimiter(), fence = (c) => (c ? [m("mo", { fence: "true", stretchy: "true" }, c)] : []);
    return m("mrow", {}, ...fence(open), ...inside, ...fence(close));
  }

  table(name) {
    const around = MATRICES[name], rows = [[]];
    if (!around) throw new Unknown(name);
    if (name === "array") this.words();
    for (;;) {
      rows[rows.length - 1].push(m("mtd", {}, this.row(["&", "\\\\", "\\end"])));
      const t = this.take();
      if (t === "\\\\") rows.push([]);
      else if (t === "\\end") break;
      else if (t !== "&") throw new Unknown("\\end");
    }
    if (this.words() !== name) throw new Unknown("\\end{" + name + "}");
    if (rows.length > 1 && rows[rows.length - 1].length === 1 && !rows[rows.length - 1][0].textContent) rows.pop();
    const lefts = name === "cases" || /^(align|split)/.test(name), table = m("mtable", { class: lefts ? "lefts" : undefined }, ...rows.map((r) => m("mtr", {}, ...r)));
    const fence = (c) => (c ? [m("mo", { fence: "true", stretchy: "true" }, c)] : []);
    return m("mrow", {}, ...fence(around[0]), table, ...fence(around[1]));
  }

  command(name) {
    if (GREEK[name]) return m("mi", {}, GREEK[name]);
    if (LARGE[name]) return m("mo", { largeop: "true", movablelimits: "true" }, LARGE[name]);
    if (NAMES.has(name)) return BELOW.has(name) ? m("mo", { movablelimits: "true", lspace: "0", rspace: "0.17em" }, name) : m("mi", {}, name);
    if (SIGNS[name]) return m("mo", {}, SIGNS[name]);
    if (SPACES[name]) return m("mspace", { width: SPACES[name] });
    if (FONTS[name]) {
      const font = FONTS[name];
      if (font === "text") return m("mtext", {}, this.words().replace(/^ +| +$/g, "\u00a0")); // MathML drops other blanks at its ends
      const text = this.look() === "{" ? this.words() : this.take() || "";
      if (/\\/.test(text)) { const inner = new Reader(text); inner.depth = this.depth + 1; return inner.row([]); }
      return m("mi", { mathvariant: font === "normal" ? "normal" : undefined }, dressed(text, font));
    }
    if (/^[dt]?frac$|^cfrac$/.test(name)) return m("mfrac", {}, this.group(), this.group());
    if (/^[dt]?binom$/.test(name)) return m("mrow", {}, m("mo", {}, "("), m("mfrac", { linethickness: "0" }, this.group(), this.group()), m("mo", {}, ")"));
    if (name === "sqrt") {
      if (this.look() !== "[") return m("msqrt", {}, this.group());
      this.at++;
      const index = this.row(["]"]);
      this.want("]");
      return m("mroot", {}, this.group(), index);
    }
    if (ACCENTS[name]) return m("mover", { accent: "true" }, this.group(), m("mo", { stretchy: /^(wide|over)/.test(name) ? "true" : "false" }, ACCENTS[name]));
    if (name === "underline" || name === "underbrace") return m("munder", {}, this.group(), m("mo", { stretchy: "true" }, name === "underline" ? "_" : "⏟"));
    if (name === "overset" || name === "stackrel") { const over = this.group(); return m("mover", {}, this.group(), over); }
    if (name === "underset") { const under = this.group(); return m("munder", {}, this.group(), under); }
    if (name === "boxed") return m("mrow", { class: "boxed" }, this.group());
    if (name === "left") return this.fenced();
    if (name === "begin") return this.table(this.words());
    if (name === "pmod") return m("mrow", {}, m("mo", {}, "("), m("mi", {}, "mod"), m("mspace", { width: "0.3em" }), this.group(), m("mo", {}, ")"));
    if (name === "bmod") return m("mo", {}, "mod");
    if (name === "not") return m("mo", {}, this.group().textContent + "\u0338");
    if (/^([bB]igg?[lrm]?)$/.test(name)) return m("mo", { stretchy: "false" }, this.delimiter());
    if (/^(displaystyle|textstyle|scriptstyle|nonumber|notag|hline|limits|nolimits)$/.test(name)) return null;
    if (name === "tag" || name === "label") { this.words(); return null; }
    throw new Unknown(name);
  }

  // As TeX has it, brackets by themselves do not grow with what they enclose: \left, \right and \big do.
  atom() {
    const t = this.take();
    if (t === undefined) throw new Unknown("the end");
    if (t === "{") { this.at--; return this.group(); }
    if (t === "\\\\") return m("mspace", { linebreak: "newline" });
    if (/^\\[a-zA-Z]/.test(t)) return this.command(t.slice(1));
    if (t === "\\|") return m("mo", { stretchy: "false" }, "‖");
    if (t[0] === "\\") { if (SPACES[t[1]]) return m("mspace", { width: SPACES[t[1]] }); return m("mo", { stretchy: "false" }, t[1]); }
    if (t === "}" || t === "&" || t === "$") throw new Unknown(t);
    if (t === "^" || t === "_") { this.at--; return m("mrow"); }
    if (t === "~") return m("mspace", { width: "0.33em" });
    if (/[0-9]/.test(t)) {
      let n = t;
      for (let c; (c = this.tokens[this.at]) !== undefined && (/[0-9]/.test(c) || (/[.,]/.test(c) && /[0-9]/.test(this.tokens[this.at + 1] || ""))); this.at++) n += c;
      return m("mn", {}, n);
    }
    if (/\p{L}/u.test(t)) return m("mi", {}, t);
    return m("mo", "()[]|/".includes(t) ? { stretchy: "false" } : {}, t === "-" ? "−" : t === "*" ? "∗" : t);
  }
}

// The mathematics of a text between its marks; null: something in it is not known.
export function math(source, block) {
  if (source.length > MOST) return null;
  try {
    const r = new Reader(source.trim()), row = r.row([]);
    if (r.look() !== undefined) return null;
    return m("math", { display: block ? "block" : "inline" }, m("semantics", {}, row, m("annotation", { encoding: "application/x-tex" }, source.trim())));
  } catch (e) {
    if (e instanceof Unknown) return null;
    throw e;
  }
}
