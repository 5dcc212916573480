"""Completions for bash, zsh and fish, and a manual page a command, from what the program says of itself; scripts/manpage.py writes them."""
import re

SHELLS = {"bash": "share/completions/tern.bash", "zsh": "share/completions/_tern", "fish": "share/completions/tern.fish"}
NOTE = "Written from the program's help when it was built."
# Words that a command takes in front of its options.
WORDS = {"rag": ["add", "ls", "rm", "show"], "cache": ["ls", "add", "measure", "rm", "clear", "limit", "path"], "sim": ["sweep", "reproduce"], "bench": ["limits"]}
FILES = re.compile(r"FILE|PATH|FOLDER|DIR|OUT|SRC")


class Option:
    """One line of `tern help COMMAND`."""

    def __init__(self, short, long, value, text):
        self.short, self.long, self.value, self.text = short, long, value, text

    def names(self):
        return [n for n in (self.short, self.long) if n]

    def kind(self):
        """What is completed behind it: model, file, set, shell (a value of its own) or flag."""
        if not self.value:
            return "flag"
        if self.long == "--set":
            return "set"
        return "model" if self.value == "MODEL" else "file" if FILES.search(self.value) else "text"


def options_of(lines):
    found = []
    for line in lines:
        m = re.match(r"  (-\w), (--\S+)(?: (\S+))? +(.*)| {6}(--\S+)(?: (\S+))? +(.*)|  (-\w)(?: (\S+))?  +(.*)", line)
        if m and (m[1] or m[5] or m[8]):
            found.append(Option(m[1] or m[8], m[2] or m[5], m[3] or m[6] or m[9], (m[4] or m[7] or m[10]).strip()))
    return found


def commands(said):
    """[(name, summary, options)]; those of `rag add` and the like are rag's."""
    out = []
    for name, summary in re.findall(r"^  (\w+) +(.*)", said("--help"), re.M):
        options = {}
        for words in [(name,)] + ([(name, w) for w in WORDS[name]] if name == "rag" else []):
            for o in options_of(said("help", *words).splitlines()):
                options.setdefault(o.long or o.short, o)
        out.append((name, summary, list(options.values())))
    return out


def values_of(groups):
    """{parameter: its values}, where they can be listed."""
    out = {}
    for _, rows in groups:
        for name, _, values, _ in rows:
            if values == "on or off":
                out[name] = ["on", "off"]
            elif "|" in values:
                out[name] = values.split(",")[0].split("|")
            else:
                out[name] = []
    return out


# ---- bash --------------------------------------------------------------------------------------------


def bash(cmds, values):
    def case(kind):
        return {c: " ".join(n for o in options for n in o.names() if o.kind() == kind) for c, _, options in cmds}

    def table(name, rows):
        return [f"    local -A {name}=("] + [f'        [{k}]="{v}"' for k, v in rows.items() if v] + ["    )"]

    every = {c: " ".join(n for o in options for n in o.names()) for c, _, options in cmds}
    return "\n".join([
        f"# bash completion of tern. {NOTE}", "", "_tern() {", f'    local commands="{" ".join(c for c, _, _ in cmds)} help"',
        *table("options", every), *table("models", case("model")), *table("files", case("file")), *table("texts", case("text")),
        *table("words", {k: " ".join(v) for k, v in WORDS.items()}), *table("values", {k: " ".join(v) for k, v in values.items()}),
        f'    local parameters="{" ".join(values)}"',
        r'''    local line="${COMP_LINE:0:COMP_POINT}" command="" i
    local cur="${line##*[[:space:]]}" before="${line%"${line##*[[:space:]]}"}"
    local -a typed
    read -ra typed <<<"$before"
    local prev="${typed[${#typed[@]} - 1]}"
    COMPREPLY=()
    for ((i = 1; i < ${#typed[@]}; i++)); do
        if [[ " $commands " == *" ${typed[i]} "* ]]; then command=${typed[i]}; break; fi
        [[ ${typed[i]} == -* ]] || break
    done
    _tern_files() { COMPREPLY+=($(compgen -f -- "$cur")); compopt -o filenames 2>/dev/null; }
    _tern_models() { _tern_files; COMPREPLY+=($(compgen -W "$(tern models 2>/dev/null | awk 'NR > 1 {print $1}')" -- "$cur")); }
    if [[ -z $command ]]; then
        if ((${#typed[@]} == 1)) && [[ $cur != -* ]]; then COMPREPLY=($(compgen -W "$commands" -- "$cur")); _tern_models; return; fi
        if ((${#typed[@]} == 1)); then COMPREPLY=($(compgen -W "--help --version" -- "$cur")); return; fi
        command=run # tern MODEL TEXT
    fi
    if [[ $command == help ]]; then COMPREPLY=($(compgen -W "$commands set" -- "$cur")); return; fi
    if [[ $prev == --set ]]; then
        if [[ $cur == *=* ]]; then
            COMPREPLY=($(compgen -W "${values[${cur%%=*}]}" -- "${cur#*=}"))
        else
            COMPREPLY=($(compgen -S = -W "$parameters" -- "$cur"))
            compopt -o nospace 2>/dev/null
        fi
        return
    fi
    if [[ $prev == -* ]]; then
        if [[ " ${models[$command]} " == *" $prev "* ]]; then _tern_models; return; fi
        if [[ " ${files[$command]} " == *" $prev "* ]]; then _tern_files; return; fi
        if [[ " ${texts[$command]} " == *" $prev "* ]]; then COMPREPLY=($(compgen -W "${values[${prev#--}]}" -- "$cur")); return; fi
    fi
    if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W "${options[$command]}" -- "$cur")); return; fi
    [[ $prev == "$command" ]] && COMPREPLY=($(compgen -W "${words[$command]}" -- "$cur"))
    _tern_models
}
complete -F _tern tern
'''])


# ---- zsh ---------------------------------------------------------------------------------------------


def quoted(text):
    return text.replace("'", "’").replace("[", "(").replace("]", ")").replace(":", "\\:").replace('"', "”").replace("`", "").replace("$", "")


def zsh(cmds, values):
    out = ["#compdef tern", f"# zsh completion of tern. {NOTE}", "", "_tern_models() {", "    local -a names",
           "    names=(${(f)\"$(tern models 2>/dev/null | awk 'NR > 1 {print $1}')\"})", "    _alternative 'files:file:_files' \"models:model:($names)\"", "}", "",
           "_tern_set() {", "    local -A values", "    values=("]
    out += [f"        {k} '{' '.join(v)}'" for k, v in values.items()]
    out += ["    )", "    if compset -P '*='; then", "        local name=${IPREFIX%=}", "        compadd -- ${=values[${name##*[= ]}]}", "    else",
            "        compadd -S = -- ${(k)values}", "    fi", "}", "", "_tern() {", "    local -a commands", "    commands=("]
    out += [f"        '{c}:{quoted(s)}'" for c, s, _ in cmds] + ["        'help:what else there is'", "    )",
            "    if ((CURRENT == 2)); then", "        _describe command commands", "        _tern_models", "        return", "    fi",
            "    local command=$words[2]", "    case $command in"]
    action = {"model": "_tern_models", "file": "_files", "set": "_tern_set"}
    for c, _, options in cmds:
        out += [f"    {c})", "        _arguments -s \\"]
        for o in options:
            again = "*" if o.long in ("--set", "--stop") else ""
            inner = values.get((o.long or "")[2:])
            tail = "" if o.kind() == "flag" else f":{quoted(o.value)}:{action.get(o.kind()) or ('(' + ' '.join(inner) + ')' if inner else ' ')}"
            for name in o.names():
                out.append(f"            '{again}{name}[{quoted(o.text)}]{tail}' \\")
        first = f"'2:word:({' '.join(WORDS[c])})' " if c in WORDS else ""
        out += [f"            {first}'*:model or text:_tern_models'", "        ;;"]
    out += ["    help) compadd -- set ${commands%%:*} ;;", "    *) _tern_models ;;", "    esac", "}", "", '_tern "$@"', ""]
    return "\n".join(out)


# ---- fish --------------------------------------------------------------------------------------------


def fish(cmds, values):
    def text(s):
        return "'" + s.replace("\\", "\\\\").replace("'", "\\'") + "'"

    out = [f"# fish completion of tern. {NOTE}", "", "function __tern_models", "    tern models 2>/dev/null | awk 'NR > 1 {print $1}'", "end", "",
           "function __tern_set"]
    out += [f"    printf '%s\\n' {' '.join(f'{k}={v}' for v in (vs or ['']))}" for k, vs in values.items()] + ["end", ""]
    out += [f"complete -c tern -n __fish_use_subcommand -a {c} -d {text(s)}" for c, s, _ in cmds]
    out += ["complete -c tern -n __fish_use_subcommand -a help -d 'what else there is'", "complete -c tern -n __fish_use_subcommand -a '(__tern_models)'",
            "complete -c tern -n '__fish_seen_subcommand_from help' -f -a " + text(" ".join(["set"] + [c for c, _, _ in cmds]))]
    out += [f"complete -c tern -n '__fish_seen_subcommand_from {c}' -a {text(' '.join(words))}" for c, words in WORDS.items()]
    for c, _, options in cmds:
        for o in options:
            parts = [f"complete -c tern -n '__fish_seen_subcommand_from {c}'"]
            parts += [f"-s {o.short[1:]}"] if o.short else []
            parts += [f"-l {o.long[2:]}"] if o.long else []
            inner = values.get((o.long or "")[2:])
            parts += {"flag": [], "file": ["-r -F"], "model": ["-r -F -a '(__tern_models)'"], "set": ["-x -a '(__tern_set)'"],
                      "text": ["-x" + (f" -a {text(' '.join(inner))}" if inner else "")]}[o.kind()]
            out.append(" ".join(parts) + f" -d {text(o.text)}")
    return "\n".join(out) + "\n"


def completions(said, groups):
    """{path: content}"""
    cmds, values = commands(said), values_of(groups)
    return {SHELLS["bash"]: bash(cmds, values), SHELLS["zsh"]: zsh(cmds, values), SHELLS["fish"]: fish(cmds, values)}


# ---- one manual page a command -----------------------------------------------------------------------


def pages(said, escaped, listed, takes_of):
    """{path: content}. escaped and listed are scripts/manpage.py's; takes_of says whether a command takes the parameters."""
    version = said("--version").split()[1]
    names = re.findall(r"^  (\w+) +(.*)", said("--help"), re.M)
    out = {}
    for name, summary in names:
        lines = said("help", name).splitlines()
        end = next(i for i, line in enumerate(lines) if re.match(r"  (-\w|    --)", line) or i == len(lines) - 1)
        usage, about = lines[0].removeprefix("usage: "), [line for line in lines[1:end] if line and not line.endswith(":")]
        page = [f'.TH TERN-{name.upper()} 1 "" "tern {version}" "User Commands"', f".\\\" {NOTE}", ".SH NAME", escaped(f"tern-{name} - {summary}").replace("\\- ", "\\- ", 1),
                ".SH SYNOPSIS", escaped(usage), ".SH DESCRIPTION"]
        for line in about:
            page += [escaped(line), ".br"]
        page = page[:-1] if about else page + [escaped(summary)]
        for words in [(name,)] + ([(name, w) for w in WORDS[name]] if name == "rag" else []):
            options = options_of(said("help", *words).splitlines())
            page += [".SH OPTIONS" if len(words) == 1 else ".SH " + escaped(" ".join(words).upper())]
            page += listed([(o.short if o.long else None, f"{o.long or o.short}{' ' + o.value if o.value else ''}", o.text) for o in options])
        if takes_of(lines):
            page += [".SH PARAMETERS", "What", r".B \-\-set", "takes is listed in", ".BR tern (1)", r"and by \(lqtern help set\(rq."]
        page += [".SH EXIT STATUS", "0: done; 1: failed, with one line on standard error; 2: wrong usage.", ".SH SEE ALSO",
                 ",\n".join([".BR tern (1)"] + [f".BR tern\\-{other} (1)" for other, _ in names if other != name]).replace(",\n", " ,\n")]
        out[f"man/tern-{name}.1"] = "\n".join(page) + "\n"
    return out
