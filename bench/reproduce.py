#!/usr/bin/env python3
"""llm.npu's Table 6 (accuracy of LAMBADA, HellaSwag, WinoGrande and OpenBookQA by scheme) and EdgeFlow's Table 4
(perplexity at 4 to 7 bits by scheme) on any model folder or GGUF file, with 95 % confidence intervals.

    bench/reproduce.sh MODEL [--tasks DIR] [--limit N] [OPTIONS]

DIR holds the sets as their authors or common collections publish them, as JSON lines (HellaSwag also as text of six
lines an item) under names that begin with lambada, hellaswag, winogrande and openbook, and a text wikitext*.txt; what
is not there is left out. Every finished part of the work is a file under --work: a run that was cut off goes on where
it ended when it is called again in the same way. Parts belong to the model's size and time, the data's content and the
program; where one of them changed, the parts are made anew.

Accuracies are those of the harness that such papers use: LAMBADA by greedy choice of every token of the last word, the
others by the log-probability of a whole ending. Differences from the float model are item by item, of perplexities
token by token and in percent of it.
"""
import argparse
import hashlib
import json
import math
import os
import re
import subprocess
import sys

TASKS = {"lambada": "LAMBADA", "hellaswag": "HellaSwag", "winogrande": "WinoGrande", "openbook": "OpenBookQA"}

# Column, how the model is opened or packed, the paper's name of it. The last two are tern's own and in no paper.
TABLE6 = [
    ("float", "FP16", ["--scheme", "float"], None),
    ("smoothquant", "SQ", None, ["--scheme", "smoothquant"]),
    ("llm-int8", "INT8()", ["--scheme", "llm-int8"], None),
    ("group-w8a8", "K-Quant", ["--scheme", "group-w8a8"], None),
    ("llm-npu", "Ours", None, ["--scheme", "llm-npu"]),
    ("llm-npu-all", "", None, ["--scheme", "llm-npu", "--prune", "0"]),
    ("gram", "", None, ["--scheme", "gram"]),
]
TABLE4 = [
    ("smoothquant", "SmoothQuant", ["--scheme", "smoothquant"]),
    ("outliers", "SO", ["--scheme", "llm-npu"]),
    ("cmpq", "CMPQ", ["--scheme", "edgeflow", "--allocation", "cmpq"]),
    ("edgeflow", "EdgeFlow", ["--scheme", "edgeflow"]),
    ("gram", "", ["--scheme", "gram"]),
]

# llm.npu, Table 6, in percent: FP16, SQ, INT8(), K-Quant, Ours. A model is told by the words of its name.
PRINTED6 = {
    "qwen1.5 1.8b": {
        "lambada": (71.1, 65.6, 71.0, 62.7, 71.7),
        "hellaswag": (43.8, 40.9, 43.5, 44.3, 43.8),
        "winogrande": (58.3, 51.0, 58.2, 59.0, 59.3),
        "openbook": (28.8, 23.0, 28.5, 28.0, 26.6),
    },
    "gemma 2b": {
        "lambada": (59.6, 45.8, 59.2, 56.9, 59.4),
        "hellaswag": (46.5, 43.8, 46.1, 45.4, 47.3),
        "winogrande": (58.3, 54.8, 59.0, 58.5, 59.5),
        "openbook": (33.7, 28.0, 34.2, 33.0, 38.4),
    },
    "phi 2": {
        "lambada": (72.2, 66.1, 71.7, 59.3, 67.5),
        "hellaswag": (48.2, 46.2, 47.7, 47.6, 46.9),
        "winogrande": (72.2, 68.9, 72.4, 72.5, 70.2),
        "openbook": (41.0, 35.9, 40.2, 39.5, 37.7),
    },
    "llama 2 7b": {
        "lambada": (87.5, 71.9, 88.0, 15.6, 86.3),
        "hellaswag": (52.8, 44.4, 53.1, 50.5, 53.5),
        "winogrande": (65.2, 56.9, 66.2, 67.4, 65.1),
        "openbook": (32.7, 25.0, 32.0, 31.5, 31.1),
    },
    "mistral 7b": {
        "lambada": (84.8, 51.2, 85.3, 23.9, 84.1),
        "hellaswag": (57.4, 44.9, 57.9, 57.0, 57.0),
        "winogrande": (73.5, 59.1, 73.3, 73.5, 73.1),
        "openbook": (39.4, 25.6, 39.3, 37.9, 39.3),
    },
}
# EdgeFlow, Table 4: bits: SmoothQuant, SO, CMPQ, EdgeFlow; FP16 is 14.59.
PRINTED4 = {
    "llama 3 8b": {
        4: ("410.67", "10k+", "103.52", "30.96"),
        5: ("99.68", "10k+", "18.22", "17.27"),
        6: ("97.31", "814.51", "15.83", "15.63"),
        7: ("75.00", "21.62", "15.11", "15.09"),
    }
}


class Trouble(Exception):
    pass


# ---- the sets in the form `tern eval` reads ---------------------------------------------------------------------


def pairs_of_lambada(item):
    """The last word of the passage is to be guessed."""
    if "continuation" in item:
        return {"context": item["context"], "continuation": item["continuation"]}
    context, _, word = item["text"].rstrip().rpartition(" ")
    return {"context": context, "continuation": word}


def hellaswag_text(s):
    """As the evaluation harness cleans WikiHow's marks."""
    return re.sub(r"\[.*?\]", "", s.strip().replace(" [title]", ". ")).replace("  ", " ")


def choice_of_hellaswag(item):
    if "query" in item:
        return ending_choice(item["query"], item["choices"], item["gold"])
    whole = "ctx_a" not in item or "ctx_b" not in item
    context = item["ctx"] if whole else item["ctx_a"] + " " + item["ctx_b"].capitalize()
    query = hellaswag_text(item["activity_label"] + ": " + context)
    return ending_choice(query, [hellaswag_text(e) for e in item["endings"]], int(item["label"]))


def choice_of_winogrande(item):
    """Each option fills the gap; what follows it is scored."""
    if "context_options" in item:
        return {k: item[k] for k in ("context_options", "continuation", "gold")}
    before, after = item["sentence"].split("_", 1)
    return {
        "context_options": [before + item["option1"], before + item["option2"]],
        "continuation": after.strip(),
        "gold": int(item["answer"]) - 1,
    }


def choice_of_openbook(item):
    """The question's stem and an answer are one sentence."""
    if "query" in item:
        return ending_choice(item["query"], item["choices"], item["gold"])
    if "question" in item:
        stem, choices = item["question"]["stem"], item["question"]["choices"]
        texts, labels = [c["text"] for c in choices], [c["label"] for c in choices]
    else:
        stem, texts, labels = item["question_stem"], item["choices"]["text"], item["choices"]["label"]
    return ending_choice(stem, texts, labels.index(item["answerKey"].strip()))


def ending_choice(query, choices, gold):
    """Endings begin with a space, so that `tern eval` takes question and ending as they stand."""
    return {"query": query.rstrip(), "choices": [" " + c.strip() for c in choices], "gold": int(gold)}


CONVERT = {
    "lambada": pairs_of_lambada,
    "hellaswag": choice_of_hellaswag,
    "winogrande": choice_of_winogrande,
    "openbook": choice_of_openbook,
}


def items_of(task, path):
    """The items of a set's file, in tern's form."""
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")
    if task == "hellaswag" and path.endswith(".txt"):
        lines = lines[: len(lines) // 6 * 6]
        raw = [
            {"query": lines[i], "choices": lines[i + 2 : i + 6], "gold": lines[i + 1]} for i in range(0, len(lines), 6)
        ]
        numbered = [(6 * i + 1, r) for i, r in enumerate(raw)]
    else:
        numbered = [(i, line) for i, line in enumerate(lines, 1) if line.strip()]
    items = []
    for number, raw in numbered:
        try:
            items.append(CONVERT[task](json.loads(raw) if isinstance(raw, str) else raw))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise Trouble(f"{path} line {number}: not an item of {TASKS[task]} ({type(e).__name__}: {e})") from None
    if not items:
        raise Trouble(f"{path}: no items")
    return items


def find_sets(folder):
    """(the file of every task that is there, the text of perplexity or None)"""
    if not os.path.isdir(folder):
        raise Trouble(f"{folder}: not a folder (--tasks DIR)")
    names = sorted(os.listdir(folder))
    sets = {}
    for task in TASKS:
        found = [n for n in names if n.lower().startswith(task) and n.endswith((".jsonl", ".txt", ".json"))]
        if found:
            sets[task] = os.path.join(folder, found[0])
    texts = [n for n in names if n.lower().startswith("wikitext") and n.endswith((".txt", ".raw"))]
    texts.sort(key=lambda n: ("train" in n, "test" not in n, n))
    return sets, os.path.join(folder, texts[0]) if texts else None


# ---- estimates --------------------------------------------------------------------------------------------------


def wilson(right, n, z=1.96):
    """The 95 % interval of a share, in percent."""
    p, zz = right / n, z * z
    middle, half = (p + zz / (2 * n)) / (1 + zz / n), z / (1 + zz / n) * math.sqrt(p * (1 - p) / n + zz / (4 * n * n))
    return 100 * (middle - half), 100 * (middle + half)


def paired(mine, reference, z=1.96):
    """Mean difference of two lists of 0 and 1 over the same items, and half its 95 % interval, in percent."""
    d = [a - b for a, b in zip(mine, reference)]
    mean = sum(d) / len(d)
    var = sum((x - mean) ** 2 for x in d) / (len(d) - 1) if len(d) > 1 else 0
    return 100 * mean, 100 * z * math.sqrt(var / len(d))


# ---- the work, part by part -------------------------------------------------------------------------------------


def digest(*parts):
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def identity(path):
    """What tells a model from another one without reading all of it: names, sizes and times of its files."""
    names = [path]
    if os.path.isdir(path):
        names = sorted(os.path.join(path, n) for n in os.listdir(path))
    stats = [(n, os.stat(n)) for n in names if os.path.isfile(n)]
    return digest(*(f"{os.path.abspath(n)} {s.st_size} {s.st_mtime_ns}" for n, s in stats))


class Work:
    def __init__(self, a):
        self.a = a
        self.model = identity(a.model)
        program = subprocess.run([a.tern, "--version"], capture_output=True, text=True, check=True).stdout
        self.program = digest(program)
        name = os.path.basename(os.path.abspath(a.model))
        self.folder = os.path.join(a.work, f"{name}.{digest(self.model, self.program, calibration(a))}")
        os.makedirs(self.folder, exist_ok=True)
        self.done = self.made = 0
        self.env = dict(os.environ, TERN_PACK="never")

    def tern(self, *words):
        r = subprocess.run([self.a.tern, *words], capture_output=True, text=True, env=self.env)
        if r.returncode:
            raise Trouble(f"tern {' '.join(words)}: exit {r.returncode}: {r.stderr.strip()}")
        return r.stdout

    def package(self, key, options):
        """Makes the package of these options, or finds the one that a run before this one made."""
        path = os.path.join(self.folder, key + ".tern")
        if not os.path.exists(path):
            calib = ["--calib", self.a.calib] if self.a.calib else []
            self.note(f"packing {key}")
            self.tern("pack", self.a.model, "-o", path + ".part", *options, *calib)
            os.replace(path + ".part", path)
        return path

    def drop_package(self, key):
        for end in (".tern", ".tern.profile", ".tern.part", ".tern.part.profile"):
            if os.path.exists(os.path.join(self.folder, key + end)):
                os.remove(os.path.join(self.folder, key + end))

    def note(self, text):
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def kept(self, name, *valid):
        """A part made before, or None. One that is cut short or lacks what it should hold counts as not made."""
        try:
            with open(os.path.join(self.folder, name), encoding="utf-8") as f:
                part = json.load(f)
            return part if isinstance(part, dict) and all(k in part for k in valid) else None
        except (OSError, ValueError):
            return None

    def keep(self, name, part):
        path = os.path.join(self.folder, name)
        with open(path + ".part", "w", encoding="utf-8") as f:
            json.dump(part, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + ".part", path)
        self.made += 1

    def task(self, key, opened, task, items):
        """Of every item, whether it was right: opened() gives the words that open the model, when they are needed."""
        key_of, right, skipped = "items_right_by_sum" if task != "lambada" else "items_right", [], 0
        for at in range(0, len(items), self.a.part):
            some = items[at : at + self.a.part]
            text = "".join(json.dumps(i) + "\n" for i in some)
            name = f"{key}.{task}.{digest(text)}.json"
            part = self.kept(name, key_of, "skipped")
            if part is None:
                self.note(f"{key}: {TASKS[task]} {at}/{len(items)}")
                data = os.path.join(self.folder, "items.jsonl")
                with open(data, "w", encoding="utf-8") as f:
                    f.write(text)
                kind = "lambada" if task == "lambada" else "choice"
                part = json.loads(self.tern("eval", *opened(), "--task", kind, "--data", data, "--json", "--items"))
                os.remove(data)
                if len(part[key_of]) + part["skipped"] != len(some):
                    raise Trouble(f"{key}: {len(part[key_of])} results for {len(some)} items")
                self.keep(name, part)
            self.done += 1
            right += part[key_of]
            skipped += part["skipped"]
        return right, skipped

    def perplexity(self, key, opened, text):
        """Perplexity, and of all columns but the float model's the difference to that, token by token."""
        with open(text, "rb") as f:
            name = f"{key}.ppl.{digest(hashlib.sha256(f.read()).hexdigest(), str(self.a.windows), str(self.a.ctx))}.json"
        against = [] if key == "float" else ["--kl", self.a.model]
        part = self.kept(name, "perplexity", "stderr", "tokens", *(["loss"] if against else []))
        if part is None:
            self.note(f"{key}: perplexity")
            limit = ["--limit", str(self.a.windows)] if self.a.windows else []
            words = ["--task", "ppl", "--data", text, "-c", str(self.a.ctx), *limit, *against, "--json"]
            part = json.loads(self.tern("eval", *opened(), *words))
            self.keep(name, part)
        self.done += 1
        return part


def calibration(a):
    if not a.calib:
        return ""
    with open(a.calib, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def opener(w, key, options, packed):
    """The words that open the model of a column. Packages are made at the first need."""
    if packed is None:
        return lambda: ["-m", w.a.model, *options]
    return lambda: ["-m", w.package(key, packed)]


# ---- the tables -------------------------------------------------------------------------------------------------


def printed_for(table, name):
    """The paper's rows for this model, where it is one of the paper's."""
    name = re.sub(r"[^a-z0-9.]+", " ", name.lower())
    name = re.sub(r"(llama|phi|gemma) ?(\d)", r"\1 \2", name)
    for words, rows in table.items():
        if all(re.search(rf"(^| ){re.escape(word)}( |$)", name) for word in words.split()):
            return words, rows
    return None, None


def table6(w, sets, text):
    columns = [c for c in TABLE6 if not w.a.columns or c[0] in w.a.columns]
    rows = {}
    for key, paper, options, packed in columns:
        opened = opener(w, key, options, packed)
        for task, items in sets.items():
            right, skipped = w.task(key, opened, task, items)
            rows[key, task] = {"column": key, "paper_column": paper, "task": task, "right": right, "skipped": skipped}
        if text:
            rows[key, "ppl"] = w.perplexity(key, opened, text)
        w.drop_package(key)
    model, printed = printed_for(PRINTED6, w.a.name)
    out = []
    for task in sets:
        for i, (key, paper, _, _) in enumerate(columns):
            r = rows[key, task]
            n, right = len(r["right"]), sum(r["right"])
            low, high = wilson(right, n) if n else (math.nan, math.nan)
            row = {"table": 6, "task": TASKS[task], "column": key, "paper_column": paper, "items": n}
            row |= {"skipped": r["skipped"], "accuracy": 100 * right / n if n else math.nan, "low": low, "high": high}
            reference = rows.get(("float", task))
            if reference and key != "float" and len(reference["right"]) == n > 0:
                row["difference"], row["difference_half"] = paired(r["right"], reference["right"])
            if printed:
                names = [c[1] for c in TABLE6 if c[1]]
                row["paper"] = printed[task][names.index(paper)] if paper else None
                row["paper_model"] = model
            out.append(row)
    for key, paper, _, _ in columns:
        if text:
            out.append(ppl_row(6, key, paper, rows[key, "ppl"]))
    return out


def ppl_row(table, column, paper_column, p):
    half = 1.96 * p["stderr"] / p["perplexity"]
    row = {
        "table": table, "task": "perplexity", "column": column, "paper_column": paper_column, "tokens": p["tokens"],
        "perplexity": p["perplexity"], "low": p["perplexity"] * math.exp(-half),
        "high": p["perplexity"] * math.exp(half),
    }  # fmt: skip
    if "loss" in p:
        d, e = p["loss"]["nll_diff"], p["loss"]["nll_diff_stderr"]
        row |= {"difference": 100 * math.expm1(d), "difference_half": 100 * math.exp(d) * 1.96 * e}
    return row


def table4(w, text):
    model, printed = printed_for(PRINTED4, w.a.name)
    out = [ppl_row(4, "float", "FP16", w.perplexity("float", opener(w, "float", ["--scheme", "float"], None), text))]
    for bits in w.a.bits:
        for i, (key, paper, options) in enumerate(TABLE4):
            name = f"{key}-{bits}bit"
            opened = opener(w, name, None, ["--bits", str(bits), *options])
            row = ppl_row(4, key, paper, w.perplexity(name, opened, text)) | {"bits": bits}
            w.drop_package(name)
            if printed and paper and bits in printed:
                row |= {"paper": printed[bits][i], "paper_model": model}
            out.append(row)
    return out


def show(rows):
    for task in dict.fromkeys(r["task"] for r in rows if r["table"] == 6):
        some = [r for r in rows if r["table"] == 6 and r["task"] == task]
        what = "perplexity" if task == "perplexity" else "accuracy, %"
        print(f"\nllm.npu, Table 6: {task}\n{'column':14}{'paper':10}{what:>14}{'95 %':>20}{'- float':>18}{'printed':>10}")
        for r in some:
            value = r.get("perplexity", r.get("accuracy"))
            line = f"{r['column']:14}{r['paper_column']:10}{value:14.2f}{interval(r):>20}"
            line += difference(r)
            print((line + (f"{r['paper']:10.1f}" if r.get("paper") is not None else "")).rstrip())
        counts = {(r["items"], r["skipped"]) for r in some if "items" in r}
        for n, skipped in sorted(counts):
            print(f"  {n} items" + (f", {skipped} longer than the context" if skipped else ""))
    four = [r for r in rows if r["table"] == 4]
    if four:
        print(f"\nEdgeFlow, Table 4: perplexity\n{'bits':6}{'column':14}{'paper':14}{'perplexity':>12}{'95 %':>24}{'- float, %':>18}{'printed':>10}")
        for r in four:
            line = f"{r.get('bits', ''):<6}{r['column']:14}{r['paper_column']:14}{r['perplexity']:12.2f}{interval(r):>24}"
            print((line + difference(r) + f"{r.get('paper', ''):>10}").rstrip())
    models = sorted({r["paper_model"] for r in rows if "paper_model" in r})
    if models:
        print(f"\n\"printed\" is the papers' row of {', '.join(models)}: other items or fewer move it.")


def difference(r):
    return f"{r['difference']:+9.2f} ± {r['difference_half']:.2f}".rjust(18) if "difference" in r else " " * 18


def interval(r):
    return f"{r['low']:.2f} to {r['high']:.2f}"


def arguments():
    data = os.path.join(os.environ.get("TERN_DATA", "../shared/data"), "text")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", metavar="MODEL", help="a Hugging Face folder or a GGUF file")
    p.add_argument("--tasks", metavar="DIR", default=data, help="folder of the sets (default: $TERN_DATA/text)")
    p.add_argument("--text", metavar="FILE", help="text of the perplexities (default: wikitext*.txt of --tasks)")
    p.add_argument("--calib", metavar="FILE", help="calibration text (default: as tern pack)")
    p.add_argument("--limit", metavar="N", type=int, default=0, help="items of each set at most (default: all)")
    p.add_argument("--windows", metavar="N", type=int, default=0, help="windows of text at most (default: all)")
    p.add_argument("--ctx", metavar="N", type=int, default=512, help="tokens of a window (default: 512)")
    p.add_argument("--bits", metavar="LIST", default="4,5,6,7", help="of Table 4 (default: 4,5,6,7; none: no Table 4)")
    p.add_argument("--columns", metavar="LIST", default="", help="of Table 6 (default: all): " + " ".join(c[0] for c in TABLE6))
    p.add_argument("--name", help="the model's name in the papers (default: that of MODEL)")
    p.add_argument("--part", metavar="N", type=int, default=250, help="items of a part of the work (default: 250)")
    p.add_argument("--work", metavar="DIR", default="build/reproduce", help="folder of what is done (default: build/reproduce)")
    p.add_argument("--tern", metavar="PROGRAM", default=os.environ.get("TERN", "build/tern"))
    p.add_argument("--json", action="store_true", help="print one JSON object")
    a = p.parse_args()
    try:
        a.bits = [] if a.bits == "none" else [int(b) for b in a.bits.split(",")]
    except ValueError:
        p.error(f"--bits {a.bits}: numbers with commas between them, or none")
    if any(not 1 <= b <= 8 for b in a.bits) or a.limit < 0 or a.windows < 0 or a.part < 1 or a.ctx < 2:
        p.error("--bits are 1 to 8, --limit and --windows 0 or more, --part 1 or more, --ctx 2 or more")
    a.columns = a.columns.split(",") if a.columns else []
    unknown = set(a.columns) - {c[0] for c in TABLE6}
    if unknown:
        p.error(f"--columns: no {', '.join(sorted(unknown))}")
    a.name = a.name or os.path.basename(os.path.abspath(a.model))
    if not os.path.exists(a.model):
        p.error(f"{a.model}: no such model")
    return a


def main():
    a = arguments()
    try:
        files, text = find_sets(a.tasks)
        text = a.text or text
        sets = {t: items_of(t, f)[: a.limit or None] for t, f in files.items()}
        if not sets and not text:
            raise Trouble(f"{a.tasks}: no {', '.join(TASKS)} and no wikitext*.txt")
        w = Work(a)
        rows = table6(w, sets, text)
        if text and a.bits:
            rows += table4(w, text)
        w.note("")
    except (Trouble, OSError, subprocess.CalledProcessError) as e:
        print(f"reproduce: {e}", file=sys.stderr)
        return 1
    if a.json:
        out = {"model": a.name, "data": {TASKS[t]: f for t, f in files.items()}, "text": text, "rows": rows}
        print(json.dumps(out | {"parts": w.done, "parts_made": w.made}, indent=2))
    else:
        print(f"{a.name}: {w.made} of {w.done} parts made in this run")
        show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
