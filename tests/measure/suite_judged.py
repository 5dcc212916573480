#!/usr/bin/env python3
"""Cases with verdicts for tests/measure/suite.c, a line of JSON each: the rules of BFCL's AST checker, of IFEval's instructions, and the
intervals, written once more in Python, whose types and regular expressions they were made for. suite_judged.py SEED N"""
import json, math, random, re, sys

draw = random.Random(int(sys.argv[1]))
N = int(sys.argv[2])


# ---- calls of functions

TYPES = {"string": str, "any": str, "integer": int, "float": float, "boolean": bool, "array": list, "tuple": list, "dict": dict}


def plain(v):
    return re.sub(r"[ ,./\-_*^]", "", v).lower().replace("'", '"') if isinstance(v, str) else v


def kind(answers):
    return next((type(a) for a in answers if a != ""), None)


def dict_fits(v, answer):
    return (isinstance(v, dict) and isinstance(answer, dict) and all(k in answer and plain(x) in [plain(y) for y in answer[k]] for k, x in v.items())
            and all(k in v or "" in ys for k, ys in answer.items()))


def value_right(about, v, answers):
    want = TYPES[about["type"]]
    inner = TYPES[about["items"]["type"]] if want is list and "items" in about else None
    if about["type"] == "float" and type(v) is int:
        v = float(v)
    if type(v) is want:
        if inner and not any(not isinstance(a, list) or all(type(x) is inner or (kind(a) and type(x) is kind(a)) for x in v) for a in answers):
            return False
        variable = kind(answers) not in (None, want)
    elif kind(answers) and type(v) is kind(answers):
        variable = True
    else:
        return False
    if variable:
        return v in answers
    if want is dict:
        return any(dict_fits(v, a) for a in answers)
    if want is list and inner is dict:
        return any(len(a) == len(v) and all(dict_fits(x, y) for x, y in zip(v, a)) for a in answers)
    if want is str:
        return plain(v) in [plain(a) for a in answers if isinstance(a, str)]
    if want is list:
        return [plain(x) for x in v] in [[plain(x) for x in a] for a in answers]
    return v in answers


def call_right(item, calls):
    if "answer" not in item:
        return not calls
    (name, answer), = item["answer"].items()
    if len(calls) != 1 or calls[0]["name"] != name.replace(".", "_"):
        return False
    f = next(f for f in item["function"] if f["name"] == name)["parameters"]
    given = json.loads(calls[0]["arguments"])
    return (all(p in given for p in f.get("required", [])) and all(p in f["properties"] and p in answer for p in given)
            and all(value_right(f["properties"][p], v, answer[p]) for p, v in given.items()) and all(p in given or "" in a for p, a in answer.items()))


# What a parameter may be, what is right, and values to try.
PARAMETERS = [
    ({"type": "string"}, ["New York, NY", "NYC"], ["new york ny", "NYC", "nyc", "N.Y.C.", "LA", 3, ["NYC"], None]),
    ({"type": "string"}, ["it's", ""], ['IT"s', "its", "", True]),
    ({"type": "integer"}, [5, ""], [5, 5.0, "5", 6, True]),
    ({"type": "integer"}, ["count", ""], ["count", "Count", 5]),
    ({"type": "integer"}, [1], [1, True, 1.0]),
    ({"type": "float"}, [2, 2.5], [2, 2.0, 2.5, "2", 3]),
    ({"type": "float"}, [2.0, ""], [2, 2.0, 3, "2", True]),
    ({"type": "boolean"}, [True, ""], [True, False, 1, "true"]),
    ({"type": "array", "items": {"type": "string"}}, [["A b", "c"], ["c"], ""], [["ab", "C"], ["c"], [], ["c", "A b"], "c", [1]]),
    ({"type": "array", "items": {"type": "float"}}, [[1.5, 2.0], [3, 4]], [[1.5, 2.0], [1.5, 2], [3, 4], [3.0, 4.0], [4, 3]]),
    ({"type": "tuple", "items": {"type": "integer"}}, [[3, 4]], [[3, 4], [3.0, 4], [True, 4]]),
    ({"type": "dict", "properties": {}}, [{"min": [3], "name": ["A", ""]}], [{"min": 3}, {"min": 3, "name": "a"}, {"name": "A"}, {"min": 3, "x": 1}, {}, [], "x"]),
    ({"type": "array", "items": {"type": "dict"}}, [[{"k": ["a"]}, {"k": ["b"]}], ""], [[{"k": "A"}, {"k": "b"}], [{"k": "b"}, {"k": "a"}], [], [{"k": "a"}], [1, 2]]),
    ({"type": "any"}, ["x", 2], ["x", "X", 2]),
]


def call_case():
    chosen = draw.sample(PARAMETERS, draw.randint(1, 5))
    properties = {f"p{i}": about for i, (about, _, _) in enumerate(chosen)}
    names = ["a.b_c", "other"]
    item = {"function": [{"name": n, "parameters": {"type": "dict", "properties": properties, "required": draw.sample(list(properties), draw.randint(0, len(properties)))}}
                         for n in names]}
    if draw.random() < .9:
        item["answer"] = {draw.choice(names): {f"p{i}": answers for i, (_, answers, _) in enumerate(chosen)}}
    given = {f"p{i}": draw.choice(values) for i, (_, _, values) in enumerate(chosen) if draw.random() < .9}
    if draw.random() < .4:
        given = {f"p{i}": values[0] for i, (_, _, values) in enumerate(chosen)}
    if draw.random() < .05:
        given["p9"] = 1
    calls = [{"name": draw.choice(["a_b_c", "a_b_c", "other", "a.b_c"]), "arguments": json.dumps(given)}] * draw.choice([0, 1, 1, 1, 1, 1, 1, 2])
    return {"kind": "call", "item": item, "calls": calls, "right": call_right(item, calls)}


# ---- instructions

def counted(kw, n, number="num_words", relation="relation"):
    return n < kw[number] if kw[relation] == "less than" else n >= kw[number]


def paragraphs(kw, v):
    pieces = re.split(r"\s?\*\*\*\s?", v)
    blank = [i for i, p in enumerate(pieces) if not p.strip()]
    return not [i for i in blank if 0 < i < len(pieces) - 1] and len(pieces) - len(blank) == kw["num_paragraphs"]


def first_word(kw, v):
    pieces = v.split("\n\n")
    n = sum(bool(p.strip()) for p in pieces)
    if kw["nth_paragraph"] > n or not pieces[kw["nth_paragraph"] - 1].strip():
        return False
    word = pieces[kw["nth_paragraph"] - 1].split()[0].lstrip("'").lstrip('"')
    return n == kw["num_paragraphs"] and re.match(r"[^.,?!'\"]*", word)[0].lower() == kw["first_word"].lower()


def is_json(kw, v):
    v = v.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        v = v.removeprefix(fence)
    try:
        json.loads(v.removesuffix("```").strip())
    except ValueError:
        return False
    return True


def two(kw, v):
    pieces = [p.strip() for p in v.split("******")]
    if not all(pieces[1:-1]):
        return False
    pieces = [p for p in pieces if p]
    return len(pieces) == 2 and pieces[0] != pieces[1]


POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
INSTRUCTIONS = {
    "keywords:existence": lambda k, v: all(re.search(w, v, re.I) for w in k["keywords"]),
    "keywords:frequency": lambda k, v: counted(k, len(re.findall(k["keyword"], v, re.I)), "frequency"),
    "keywords:forbidden_words": lambda k, v: not any(re.search(rf"\b{w}\b", v, re.I) for w in k["forbidden_words"]),
    "keywords:letter_frequency": lambda k, v: counted(k, v.lower().count(k["letter"].lower()), "let_frequency", "let_relation"),
    "length_constraints:number_paragraphs": paragraphs,
    "length_constraints:number_words": lambda k, v: counted(k, len(re.findall(r"\w+", v))),
    "length_constraints:nth_paragraph_first_word": first_word,
    "detectable_content:number_placeholders": lambda k, v: len(re.findall(r"\[.*?\]", v)) >= k["num_placeholders"],
    "detectable_content:postscript": lambda k, v: bool(re.search(POSTSCRIPTS[k["postscript_marker"]], v.lower())),
    "detectable_format:number_bullet_lists": lambda k, v: len(re.findall(r"^\s*\*[^*].*$", v, re.M)) + len(re.findall(r"^\s*-.*$", v, re.M)) == k["num_bullets"],
    "detectable_format:constrained_response": lambda k, v: any(f"My answer is {w}." in v for w in ("yes", "no", "maybe")),
    "detectable_format:number_highlighted_sections": lambda k, v: sum(bool(x.strip("*").strip()) for x in re.findall(r"\*[^\n*]*\*", v))
    + sum(bool(x[2:-2].strip()) for x in re.findall(r"\*\*[^\n*]*\*\*", v)) >= k["num_highlights"],
    "detectable_format:multiple_sections": lambda k, v: len(re.split(rf"\s?{k['section_spliter']}\s?\d+\s?", v)) > k["num_sections"],
    "detectable_format:json_format": is_json,
    "detectable_format:title": lambda k, v: any(t.lstrip("<").rstrip(">").strip() for t in re.findall(r"<<[^\n]+>>", v)),
    "combination:two_responses": two,
    "combination:repeat_prompt": lambda k, v: v.strip().lower().startswith(k["prompt_to_repeat"].strip().lower()),
    "startend:end_checker": lambda k, v: v.strip().strip('"').lower().endswith(k["end_phrase"].strip().lower()),
    "punctuation:no_comma": lambda k, v: "," not in v,
    "startend:quotation": lambda k, v: len(v.strip()) > 1 and v.strip()[0] == '"' == v.strip()[-1],
}
NOT_CHECKED = ["language:response_language", "length_constraints:number_sentences", "change_case:capital_word_frequency", "change_case:english_capital",
               "change_case:english_lowercase"]
WORDS = ["alpha", "Beta", "GAMMA", "straße", "été", "word's", "x_1", "日本", "re-do", "the", "The", "3rd", "٣"]
PIECES = ["*a b*", "** **", "**bold**", "* item", "- item", "  * it", "*", "***", "******", "[x]", "[a [b]", "[\n]", "<<t>>", "<< >>", "<<a\n>>", "P.S. hi", "p. s. x", "P.P.S foo",
          "Section 1", "SECTION 2 ", "section3", "\n", "\n\n", "\n\n\n", " ", "\t", "\u00a0", "\u2003", '"', "'", ",", ".", "My answer is yes.", "```json", "```", '{"a":[1,2]}', '{"a":}',
          "12", "true", "Bye now.", "!"]


def kwargs():
    n, relation = draw.randint(1, 3), draw.choice(["less than", "at least"])
    return {"keywords": draw.sample(WORDS, n), "forbidden_words": draw.sample(WORDS, n), "relation": relation, "keyword": draw.choice(WORDS), "frequency": n, "let_relation": relation,
            "letter": draw.choice("aeT!É"), "let_frequency": 2 * n, "num_paragraphs": n, "num_words": 4 * n, "nth_paragraph": draw.randint(1, n), "first_word": draw.choice(WORDS),
            "num_placeholders": n, "postscript_marker": draw.choice(list(POSTSCRIPTS)), "num_bullets": n, "num_highlights": n, "section_spliter": "Section", "num_sections": n,
            "prompt_to_repeat": "Alpha beta ", "end_phrase": "Bye now.", "language": "kn"}


def answer(kw):
    text = "".join(draw.choice(WORDS if draw.random() < .5 else PIECES) + draw.choice(["", " ", " ", "\n", "\n\n"]) for _ in range(draw.choice([0, 1, 2, 4, 8, 20])))
    return draw.choice([text, f'"{text}"', "```json\n" + draw.choice(['{"a":1}', "[]", "nul", '{"a":1,}']) + "\n```", f"{text}******{draw.choice(WORDS)}", "***".join([text, "one", draw.choice(["", " ", "z"])]),
                        f"Of course:\n{text}\nDone.", f"alpha BETA {text}", f'{text} bye NOW." ', "\n\n".join(draw.choice(["", "'", '"', "*"]) + kw["first_word"] + draw.choice(["", ", x", " y"]) for _ in range(kw["num_paragraphs"]))])


def instruction_case():
    ids = draw.sample(list(INSTRUCTIONS) + NOT_CHECKED, draw.randint(1, 3))
    kw = kwargs()
    v = answer(kw)
    lines = v.split("\n")
    forms = [v, "\n".join(lines[1:]).strip(), "\n".join(lines[:-1]).strip(), "\n".join(lines[1:-1]).strip()]
    forms += [f.replace("*", "") for f in forms]

    def holds(i, text):
        return bool(text.strip()) and INSTRUCTIONS[i](kw, text)

    marks = [{"id": i, "strict": holds(i, v) if i in INSTRUCTIONS else None, "loose": any(holds(i, f) for f in forms) if i in INSTRUCTIONS else None} for i in ids]
    return {"kind": "instruction", "item": {"key": 1, "prompt": "p", "instruction_id_list": ids, "kwargs": [kw] * len(ids), "line": 1}, "answer": v, "marks": marks}


# ---- numbers

def wilson(share, n):
    """The roots of (share - p)^2 = z^2 p (1 - p) / n, by halving."""
    z = 1.959963984540054

    def root(inside, outside):
        for _ in range(200):
            p = (inside + outside) / 2
            inside, outside = (p, outside) if (share - p) ** 2 <= z * z * p * (1 - p) / n else (inside, p)
        return (inside + outside) / 2

    return [root(share, 0.0), root(share, 1.0)]


def number_case():
    n, m = draw.randint(1, 400), draw.choice([2, 10, 60, 300])
    a, b = draw.randint(0, m), draw.randint(0, m)
    tail = sum(math.comb(a + b, k) for k in range(min(a, b) + 1))
    return {"kind": "number", "share": (s := draw.choice([0, 1, draw.random()])), "n": n, "interval": wilson(s, n), "a": a, "b": b, "p": min(1, 2 * tail / 2 ** (a + b))}


for _ in range(N):
    print(json.dumps(draw.choice([call_case, instruction_case, number_case])()))
