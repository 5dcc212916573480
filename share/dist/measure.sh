#!/bin/sh
# What this machine does with tern, as one JSON object to send back:  sh measure.sh [MODEL] > machine.json
#   TERN (./tern, or bin/tern beside this file): the program. MODEL: a GGUF file or a package; without one, random weights in the shape of a
#   0.5B model are made in the current folder (380 MB; SHAPE names another, of `tern synth --list`) and removed again: speeds are a real model's.
#   PROMPTS (128,512) and TOKENS (64): what is measured. Takes a few minutes. Runs in a plain sh, as on Android: nothing but tern is needed.
# The object: what machine and processor, its limits, speeds on all cores and on the fast ones, with energy and temperature where they are told.
here=$(dirname "$0")
if [ -z "$TERN" ]; then
    for TERN in ./tern "$here/tern" "$here/bin/tern" "$here/../bin/tern"; do [ -x "$TERN" ] && break; done
fi
[ -x "$TERN" ] || { echo "measure.sh: no program: TERN=path/to/tern sh measure.sh" >&2; exit 1; }
model=$1 made=
export TERN_PACK=never HOME="${HOME:-$PWD}"
if [ -z "$model" ]; then
    model=measure-$$.gguf made=$model
    trap 'rm -f "$made" "$made.profile"' EXIT
    trap 'exit 1' INT TERM
    echo "measure.sh: making $model" >&2
    "$TERN" synth --arch "${SHAPE:-qwen2.5-0.5b}" --type q4_0 -o "$model" >&2 || exit 1
fi
string() { # its standard input as a JSON string
    printf '"'
    tr '\n' '|' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/|$//'
    printf '"'
}
# A name and the JSON that a command prints, or what it said instead: one measurement that fails does not lose the others.
part() {
    name=$1
    shift
    echo "measure.sh: $name" >&2
    printf ',\n"%s": ' "$name"
    if out=$("$TERN" "$@" 2>measure-$$.err); then printf '%s' "$out"; else
        printf '{"failed": '
        string <measure-$$.err
        printf '}'
    fi
    rm -f measure-$$.err
}
printf '{"what": "tern on a machine", "format": 1,\n"version": '
"$TERN" --version | string
printf ',\n"machine": '
{ uname -srm; getprop ro.product.model; getprop ro.soc.model; getprop ro.build.version.release; grep -m1 -E "model name|Hardware" /proc/cpuinfo; } 2>/dev/null | string
printf ',\n"cores": '
for c in "${TERN_SYS:-/sys}"/devices/system/cpu/cpu[0-9]*; do
    printf '%s %s %s\n' "${c##*/}" "$(cat "$c/cpu_capacity" 2>/dev/null)" "$(cat "$c/cpufreq/cpuinfo_max_freq" 2>/dev/null)"
done | string
printf ',\n"kernels": '
"$TERN" inspect --cpu | string
printf ',\n"model": '
printf '%s' "${made:+random weights, }${made:+${SHAPE:-qwen2.5-0.5b}}${made:-$model}" | sed "s/measure-$$.gguf//" | string
part limits bench limits --json
part all_cores bench -m "$model" -p "${PROMPTS:-128,512}" -n "${TOKENS:-64}" --json
part fast_cores bench -m "$model" -p "${PROMPTS:-128,512}" -n "${TOKENS:-64}" --cores fast --json
part answer run -m "$model" -p "Once upon a time" -n 32 --temp 0 --json
printf '}\n'
