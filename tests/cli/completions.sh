#!/usr/bin/env bash
# The completions offer commands, options and values in bash, zsh and fish. The build writes them from what the program says.
set -euo pipefail
[ -z "${TERN_EMULATED:-}" ] || { echo "skipped: shells would call the program of another processor"; exit 77; }
PATH=$(dirname "$(realpath "$1")"):$PATH
said=$(dirname "$(realpath "$1")")/said/share/completions
[ -s "$said/tern.bash" ] || { echo "FAILED: the build wrote no completions"; exit 1; }
export said PATH HOME=/nonexistent TERN_MODELS= # no model is found by name
expect() { # shell, line, a word that is offered, or !word
    local shell=$1 line=$2 offered
    shift 2
    offered=$(offer_$shell "$line")
    for word in "$@"; do
        if [ "${word#!}" != "$word" ]; then ! grep -qxF -- "${word#!}" <<<"$offered" || { echo "FAILED: $shell offers ${word#!} for: $line"; exit 1; }
        else grep -qxF -- "$word" <<<"$offered" || { echo "FAILED: $shell does not offer $word for: $line"; echo "$offered" | head -20; exit 1; }; fi
    done
}
offer_bash() {
    bash -c 'source $said/tern.bash; COMP_LINE=$1 COMP_POINT=${#1}; _tern 2>/dev/null; printf "%s\n" "${COMPREPLY[@]}"' - "$1"
}
offer_fish() { # fish gives whole words, with =
    fish -N -c 'source $said/tern.fish; complete -C "$argv[1]"' "$1" 2>/dev/null | cut -f1 | sed 's/^attention=//'
}
# zsh's own functions need a terminal: here they print what they are told.
offer_zsh() {
    zsh -f -c '
        compdef() { : }; _files() { print -l * }; _alternative() { print -l * }
        _describe() { print -l -- ${(P)2%%:*} }
        compadd() { while [[ $1 == -[a-zA-Z] ]] { shift 2 }; [[ $1 == -- ]] && shift; print -l -- "$@" }
        compset() { [[ $PREFIX == *=* ]] && IPREFIX=${PREFIX%%=*}= }
        _arguments() {
            local spec
            for spec in "$@"; do
                spec=${spec#\*}
                if [[ ${words[CURRENT-1]} == ${spec%%\[*} && $spec == *:_tern_set ]]; then _tern_set; return; fi
                [[ $spec == 2:* && CURRENT -eq 3 ]] && print -l -- ${=${${spec##*\(}%%\)*}}
                print -r -- ${spec%%\[*}
            done
        }
        words=(${(z)1}); [[ $1 == *" " ]] && words+=("")
        CURRENT=$#words PREFIX=$words[-1]
        source $said/_tern' - "$1"
}
tried=
for shell in bash fish zsh; do
    command -v $shell >/dev/null || { echo "no $shell (Debian: $shell): its completions are not tried"; continue; }
    tried=$tried$shell
    expect $shell "tern " run chat serve help
    expect $shell "tern run --" --temp --raw --set !--scheme
    expect $shell "tern pack --" --scheme !--temp
    expect $shell "tern run --set attention=" shadow full !stream
    expect $shell "tern rag " add ls
    expect $shell "tern cache " clear
    expect $shell "tern help " set run
done
echo "completions: $tried"
