#!/usr/bin/env python3
"""What jinja2 makes of chat templates, run as Hugging Face runs them (python3-jinja2).

  chat_templates.py FOLDER...         one JSON object a line: every *.jinja of the folders with every conversation
  chat_templates.py --random N SEED   N small random templates with random values

A line holds name, source, variables, and what comes out: text, or null where jinja2 refuses. tests/text/jinja.c reads
the lines and compares."""
import datetime, functools, json, random, sys, warnings
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

warnings.simplefilter("ignore")  # Python's, on what templates compile to
NOW = 1763719200  # 2025-11-21, so that no expectation depends on the day


class Generation(Extension):
    """Hugging Face's tag that marks the assistant's text for training."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW).strftime(f)
    return env


ENV = environment()


@functools.lru_cache(4)
def compiled(source):
    return ENV.from_string(source)


def render(source, variables):
    try:
        return compiled(source).render(**variables)
    except Exception:  # a template may fail in any way Python can
        return None


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place, \"now\" or later.\nIn °C.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "a town"},
                "days": {"type": "integer", "description": "ahead", "default": 0},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "detail": {"type": "object", "properties": {"wind": {"type": "boolean"}}},
                "hours": {"type": "array", "items": {"type": "number"}},
            },
            "required": ["place"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "the time", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


USER = {"role": "user", "content": "Hi"}
TURNS = [USER, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": " Bye\n"}]
SYSTEM = {"role": "system", "content": "Be brief."}
CALLED = [
    {"role": "user", "content": "Weather in Köln?"},
    {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"place": "Köln", "days": 2, "detail": {"wind": True}})]},
    {"role": "tool", "content": '{"t": 21.5}', "name": "get_weather", "tool_call_id": "call00001"},
]
THOUGHT = [
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\n2"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "reasoning_content": "I am.", "thinking": "I am.", "content": "Yes."},
    {"role": "user", "content": "why?"},
]
CONVERSATIONS = {
    "user": dict(messages=[USER]),
    "no_prompt": dict(messages=TURNS[:2], add_generation_prompt=False),
    "turns": dict(messages=TURNS),
    "system": dict(messages=[SYSTEM] + TURNS),
    "markers": dict(messages=[{"role": "user", "content": "a<|im_end|>\n<|im_start|>system\n[/INST]</s>{{ x }}{% y %}"}]),
    "parts": dict(messages=[{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]),
    "tools": dict(messages=[SYSTEM, USER], tools=[WEATHER, CLOCK]),
    "called": dict(messages=CALLED[:2], tools=[WEATHER], add_generation_prompt=False),
    "answered": dict(messages=[SYSTEM] + CALLED, tools=[WEATHER, CLOCK]),
    "called_twice": dict(
        messages=CALLED[:1]
        + [{"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"place": "A"}, "call00002"), call("clock", {}, "call00003")]}]
        + [{"role": "tool", "content": "sunny", "name": "get_weather", "tool_call_id": "call00002"}, {"role": "tool", "content": "12:00", "name": "clock", "tool_call_id": "call00003"}]
        + [{"role": "assistant", "content": "Sunny at noon."}, {"role": "user", "content": "Thanks"}],
        tools=[WEATHER, CLOCK],
    ),
    "arguments_text": dict(messages=[USER, {"role": "assistant", "content": None, "tool_calls": [call("clock", "{\"zone\": \"UTC\"}")]}], tools=[CLOCK]),
    "thought": dict(messages=THOUGHT),
    "no_thinking": dict(messages=[USER], enable_thinking=False, thinking=False),
    "thinking": dict(messages=[SYSTEM] + THOUGHT, enable_thinking=True, thinking=True, reasoning_effort="high"),
    "date": dict(messages=[USER], date_string="1 Jan 2024", builtin_tools=["python", "browser"]),
    "documents": dict(messages=[USER], documents=[{"title": "A", "text": "first"}, {"title": "B", "text": "second"}]),
    "empty": dict(messages=[]),
    "wrong_order": dict(messages=[{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]),
}


def conversations():
    for name, c in CONVERSATIONS.items():
        v = dict(tools=None, documents=None, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>")
        v.update(c)
        yield name, v


def emit(name, source, variables):
    print(json.dumps({"name": name, "source": source, "variables": variables, "text": render(source, variables)}, ensure_ascii=False))


class Random:
    """Random expressions and statements over a few variables; most are well formed."""

    NAMES = ["i", "f", "s", "t", "l", "d", "m", "b", "n", "u", "e"]
    VALUES = dict(i=7, f=2.5, s="Ab c<|x|> é\n z ", t="", l=[3, 1, 2, "b", "a"], d={"k": "v", "a": 1, "items": [1, 2]}, m=[{"r": "x", "c": " one "}, {"r": "y", "c": "Two"}], b=True, n=None, e=[])
    KINDS = ["str", "num", "list", "dict", "bool"]
    ATOMS = dict(
        str=["s", "t", "'x'", "\"a'b\"", "'\\n\\t\\u00e9'", "'a' 'b'", "''", "m[0].c", "d.k", "l[3]", "'%s-%d' % ('q', 3)", "'a,b,,c'"],
        num=["i", "f", "0", "1", "-3", "2.0", "1e3", "0.1", "12345678901", "1_000", "d.a", "l[0]", "true"],
        list=["l", "m", "e", "[]", "[1, 'a']", "(1, 2)", "(1,)", "['b', 'A', 'a']", "range(4)", "[[1, 2], [0]]", "[3, 1, 2]", "['', 'x', none]"],
        dict=["d", "m[1]", "{}", "{'a': 1, 'b': [2]}", "{'z': none, 'B': 'q', 'a': {}}", "dict(x=1, y='2')"],
        bool=["b", "n", "u", "true", "false", "none", "i > 3", "'c' in s", "2 in l", "'k' in d", "s is string", "u is defined", "n is none", "not b"],
    )
    # what an expression of a kind may become: template with @ for it, kind of the result
    STEPS = dict(
        str=[("@ | upper", "str"), ("@ | lower", "str"), ("@|title", "str"), ("@ | capitalize", "str"), ("@ | trim", "str"), ("@ | length", "num"), ("@ | first", "str"), ("@ | last", "str"), ("@ | list", "list"),
             ("@ | reverse", "str"), ("@ | string", "str"), ("@ | default('z', true)", "str"), ("@ | replace('a', 'XY')", "str"), ("@|replace('b', '', 1)", "str"), ("@ | int", "num"), ("@ | float(1.5)", "num"), ("@ | tojson", "str"), ("@ | indent(2, true)", "str"),
             ("@ | wordcount", "num"), ("@ | center(9)", "str"), ("@ | truncate(6)", "str"), ("(@).strip()", "str"), ("(@).lstrip('A\\n ')", "str"), ("(@).rstrip()", "str"), ("(@).split()", "list"), ("(@).split(',')", "list"), ("(@).split('a', 1)", "list"), ("(@).rsplit('a', 1)", "list"),
             ("(@).upper()", "str"), ("(@).title()", "str"), ("(@).capitalize()", "str"), ("(@).swapcase()", "str"), ("(@).startswith('A')", "bool"), ("(@).endswith(('x', 'b'))", "bool"), ("(@).replace('b', '--')", "str"), ("(@).find('c')", "num"), ("(@).rfind('a')", "num"), ("(@).count('a')", "num"), ("(@).splitlines()", "list"),
             ("(@).join(['p', 'q'])", "str"), ("(@).isdigit()", "bool"), ("(@).isupper()", "bool"), ("(@).partition('c')", "list"), ("(@).rpartition('a')", "list"), ("(@).removeprefix('Ab')", "str"), ("(@)[1:]", "str"), ("(@)[::-1]", "str"), ("(@)[-3:-1]", "str"), ("(@)[5:1:-2]", "str"), ("(@)[:2]", "str"), ("(@)[0]", "str"), ("(@)[99]", "undef"),
             ("@ + #str", "str"), ("@ ~ #any", "str"), ("#any ~ @", "str"), ("@ * 2", "str"), ("@ == #str", "bool"), ("@ < #str", "bool"), ("#str in @", "bool"), ("@ is lower", "bool"), ("@ is upper", "bool"), ("@ is eq 'x'", "bool"), ("@ or #str", "str"), ("@ and #str", "str"), ("(@ if #bool else #str)", "str"), ("[@, #str]", "list"), ("{'k': @}", "dict"), ("'%s!' | format(@)", "str")],
        num=[("@ + #num", "num"), ("@ - #num", "num"), ("@ * 2", "num"), ("@ / 4", "num"), ("@ // 3", "num"), ("@ % 3", "num"), ("@ % -2.5", "num"), ("@ ** 2", "num"), ("-(@)", "num"), ("-@", "num"), ("@ | abs", "num"), ("@ | round", "num"), ("@ | round(1)", "num"), ("@ | round(1, 'ceil')", "num"), ("@ | int", "num"), ("@|float", "num"), ("@ | string", "str"),
             ("@ ~ 'x'", "str"), ("@ < #num", "bool"), ("1 <= @ <= 5", "bool"), ("@ != #num", "bool"), ("@ is odd", "bool"), ("@ is number", "bool"), ("@ is integer", "bool"), ("@ is float", "bool"), ("@ in l", "bool"), ("@ is divisibleby 2", "bool"), ("@ | tojson", "str"), ("[@, 2] | max", "num"), ("l[@]", "undef"), ("not @", "bool"), ("@ is lt 3", "bool")],
        list=[("@ | length", "num"), ("@ | first", "any"), ("@ | last", "any"), ("@ | join(', ')", "str"), ("@ | join", "str"), ("@ | list", "list"), ("@ | reverse | list", "list"), ("@ | unique | list", "list"), ("@ | map('string') | list", "list"), ("@ | map('upper') | join('|')", "str"), ("@ | map('length') | list", "list"), ("@ | select | list", "list"), ("@ | reject('none') | list", "list"),
              ("@ | select('string') | list", "list"), ("@ | select('in', [1, 'a']) | list", "list"), ("@ | selectattr('r', 'equalto', 'x') | list", "list"), ("@ | rejectattr('r') | list", "list"), ("@ | map(attribute='r') | list", "list"), ("@ | map(attribute='0', default='w') | list", "list"), ("@ | map(attribute='c', default='w') | join", "str"), ("@ | sum", "num"), ("@ | min", "any"), ("@ | max", "any"), ("@ | sort", "list"), ("@ | map('string') | sort(reverse=true)", "list"), ("@ | sort(case_sensitive=true)", "list"),
              ("@ | sort(attribute='c')", "list"), ("@ | batch(2, 'f') | list", "list"), ("@ | tojson", "str"), ("@ | tojson(indent=2)", "str"), ("(@)[1:]", "list"), ("(@)[::-1]", "list"), ("(@)[0]", "any"), ("(@)[-1]", "any"), ("(@)[9]", "undef"), ("(@)[-9:9:3]", "list"), ("@ + [1]", "list"), ("@ + #list", "list"), ("@ * 2", "list"), ("@ == #list", "bool"), ("#any in @", "bool"), ("#num not in @", "bool"), ("@ | string", "str"), ("@ is sequence", "bool"), ("@ is mapping", "bool"), ("@ is iterable", "bool"), ("(@).index(1)", "num"), ("(@).count('a')", "num"), ("@ | groupby('r') | list", "list"), ("@ or #list", "list"), ("@ | map('first') | list", "list")],
        dict=[("@ | length", "num"), ("@ | list", "list"), ("@ | items | list", "list"), ("(@).items() | list", "list"), ("(@).keys() | list", "list"), ("(@).values() | list", "list"), ("@ | dictsort", "list"), ("@ | dictsort(reverse=true)", "list"), ("@ | tojson", "str"), ("@ | tojson(indent=4)", "str"), ("@ | tojson(separators=(',', ':'), sort_keys=true)", "str"), ("(@).get('k')", "any"), ("(@).get('zz', 5)", "num"), ("(@).k", "any"), ("(@)['a']", "any"),
              ("(@).items", "undef"), ("(@)['items']", "any"), ("(@).zz", "undef"), ("'a' in @", "bool"), ("@ == #dict", "bool"), ("@ | string", "str"), ("@ is mapping", "bool"), ("@ is sequence", "bool"), ("@ | first", "str"), ("(@).items() | length", "num"), ("dict(@, w=2)", "dict"), ("(@).copy()", "dict")],
        bool=[("not @", "bool"), ("@ and #bool", "bool"), ("@ or #any", "any"), ("(#any if @ else #any)", "any"), ("(#str if @)", "str"), ("@ is none", "bool"), ("@ is true", "bool"), ("@ is boolean", "bool"), ("@ is defined", "bool"), ("@ == #bool", "bool"), ("@ | string", "str"), ("@ | default('y', true)", "any"), ("@ | tojson", "str"), ("@ ~ 'x'", "str"), ("(@) is not false", "bool")],
        any=[("@ is defined", "bool"), ("@ | string", "str"), ("@ | default('y')", "any"), ("@ == #any", "bool"), ("@ ~ '.'", "str"), ("[@]", "list"), ("@ is string", "bool"), ("@ | tojson", "str"), ("@ is not mapping", "bool"), ("(@, #any)", "list"), ("@ is sameas true", "bool"), ("@ is callable", "bool")],
        undef=[("@ is defined", "bool"), ("@ | default('y')", "any"), ("(@) is undefined", "bool"), ("@ ~ 'x'", "str"), ("not @", "bool")],
    )

    def __init__(self, seed):
        self.r = random.Random(seed)

    def expr(self, kind=None, depth=3):
        """Of the kind asked for, usually: the wrong kind is what templates meet too."""
        r = self.r
        if kind in (None, "any"):
            kind = r.choice(self.KINDS)
        have = r.choice(self.KINDS)
        s = r.choice(self.ATOMS[have])
        for _ in range(4):
            if have == kind and r.random() < 0.4 + 0.2 * (3 - depth):
                break
            step, then = r.choice(self.STEPS[have])
            while "#" in step:
                at = step.index("#")
                end = at + 1
                while end < len(step) and step[end].isalpha():
                    end += 1
                want = step[at + 1 : end]
                inner = self.expr(want, depth - 2) if depth > 1 else r.choice(self.ATOMS[want if want in self.ATOMS else "str"])
                step = step[:at] + (f"({inner})" if r.random() < 0.8 else inner) + step[end:]
            if r.random() < 0.75:
                s = f"({s})"
            s, have = step.replace("@", s), then
        return s

    @staticmethod
    def q(s):
        return f"'{s}'"

    def tag(self, inside):
        r = self.r
        return "{%" + r.choice(["", "", "-", "+"]) + " " + inside + " " + r.choice(["", "", "-", "+"]) + "%}"

    def text(self):
        return "".join(self.r.choice(["a", " ", "\n", "  \n", "\t", "<", "é", "b\n", "{", "}", "# "]) for _ in range(self.r.randrange(4)))

    def statement(self, depth):
        r = self.r
        k = r.randrange(13)
        if k < 4 or not depth:
            return "{{" + r.choice(["", "", "-"]) + " " + self.expr() + " " + r.choice(["", "", "-"]) + "}}"
        body = lambda: self.template(depth - 1)
        if k == 4:
            return self.tag("if " + self.expr("bool")) + body() + (self.tag("elif " + self.expr("bool", 1)) + body() if r.random() < 0.4 else "") + (self.tag("else") + body() if r.random() < 0.5 else "") + self.tag("endif")
        if k in (5, 6):
            over = r.choice(["l", "m", "s", "d", "e", "range(3)", "d.items()", "m[::-1]", self.expr("list"), "u"])
            target = "k, v" if "items()" in over else "x"
            inner = r.choice(["{{ loop.index }}", "{{ loop.last }}{{ loop.revindex0 }}", "{{ x }}", "{{ loop.previtem }}{{ loop.nextitem is defined }}", "{{ loop.cycle('p', 'q') }}", "{{ loop.changed(x) }}", "{% set i = loop.index0 %}{{ i }}", "{% if loop.first %}{% continue %}{% endif %}", "{% if loop.index == 2 %}{% break %}{% endif %}", "{% set ns.v = loop.index %}"])
            cond = " if " + r.choice(["x", "x is string", "x is defined"]) if r.random() < 0.3 else ""
            return self.tag(f"for {target} in {over}{cond}") + inner + body() + (self.tag("else") + body() if r.random() < 0.3 else "") + self.tag("endfor")
        if k == 7:
            return self.tag(f"set {r.choice('pqv')} = {self.expr()}") + "{{ p is defined }}{{ q }}{{ v }}"
        if k == 8:
            return self.tag("set w" + r.choice(["", " | upper", " | trim | length"])) + body() + self.tag("endset")
        if k == 9:
            return self.tag("macro w(a, c='z')") + "{{ a }}{{ c }}" + body() + self.tag("endmacro") + "{{ w(" + r.choice(["1", "i, s", "c=3, a=l", "", "1, 2, 3"]) + ") }}"
        if k == 10:
            return self.tag("filter " + r.choice(["upper", "trim", "replace('a', 'o')", "indent(3)"])) + body() + self.tag("endfilter")
        if k == 11:
            return r.choice(["{# note #}", "{#- x -#}", "{#\n#}\n", "{% raw %} {{ x }} {% endraw %}", "{%- raw -%}\n {% y %}\n{%- endraw -%}\n"])
        return self.tag("set ns = namespace(v=" + self.expr("str", 1) + ")") + self.tag("set ns.v = ns.v ~ 'q'") + "{{ ns.v }}"

    def names(self):
        """Many names in one scope, some as long as a sentence and alike at their ends: set, set again, read, and read from a macro."""
        n = self.r.choice([3, 15, 16, 17, 33, 200])
        tail = "" if self.r.random() < 0.5 else "_" + "t" * 70
        order = [self.r.randrange(n) for _ in range(2 * n)]
        sets = "".join("{%% set v%d%s = %d %%}" % (k, tail, i) for i, k in enumerate(order))
        reads = "".join("{{ v%d%s }}," % (k, tail) for k in sorted(set(order)))
        inner = "".join("{%% set v%d%s = k %%}" % (k, tail) for k in order[:n])
        return "%s{%% macro r() %%}%s{%% endmacro %%}%s{{ r() }}{%% for k in [7, 8] %%}%s%s{%% endfor %%}%s" % (sets, reads, reads, inner, reads, reads)

    def template(self, depth=1):
        return "".join(self.text() + self.statement(depth) for _ in range(self.r.choice([1, 1, 2]))) + self.text()


def main():
    args = sys.argv[1:]
    if args[:1] == ["--random"]:
        g = Random(int(args[2]))
        for i in range(int(args[1])):
            emit(f"random {args[2]}/{i}", g.names() if i % 10 == 9 else g.template(), dict(Random.VALUES, ns={"v": 1}))
        return
    for folder in args:
        for path in sorted(Path(folder).glob("*.jinja")):
            for name, variables in conversations():
                emit(f"{path.stem} {name}", path.read_text(), variables)


main()
