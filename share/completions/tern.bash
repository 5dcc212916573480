# bash completion of tern. Written by scripts/manpage.py from the program's help.

_tern() {
    local commands="run chat models serve ask rag forget tokenize eval pack cache inspect synth bench sim help"
    local -A options=(
        [run]="-m --model -p --prompt -f --file --raw --system --stop --json --stats --explain -n --n-predict --temp --top-k --top-p --min-p --seed -t --threads -c --ctx-size --exact --set --pack --chat --chat-template --grammar --json-schema --grammar-after --store --load-session --save-session --trace --gantt --logprobs -h --help"
        [chat]="-m --model --system --on-full --store --no-store --stats -n --n-predict --temp --top-k --top-p --min-p --seed -t --threads -c --ctx-size --exact --set --pack --chat-template --grammar --json-schema --grammar-after -h --help"
        [models]="--json -h --help"
        [serve]="-m --model --host --port --api-key-file --model-name -c --ctx-size --sessions --queue --cache-size --on-full --draft -t --threads --exact --set --pack --chat-template -h --help"
        [ask]="-m --model -k --passages --system --store --no-keep --no-sources --trace --json --stats -n --n-predict --temp --top-k --top-p --min-p --seed -t --threads -c --ctx-size --exact --set --pack --chat-template -h --help"
        [rag]="-h --help --store -m --model --passage --overlap --max-file --json --all"
        [forget]="--all --documents --list --json --store -h --help"
        [tokenize]="-m --model --ids --decode --no-special -h --help"
        [eval]="-m --model --task --data -c --ctx-size --protocol --kl --against --limit --items --draft --json -t --threads --exact --set -h --help"
        [pack]="-o --output --scheme -b --bits --quality --quick --allocation --bits-scope --outliers --calib --calib-tokens --calib-window --prune --prune-error --outlier-share --head-importance -t --threads --json -h --help"
        [cache]="--json -h --help"
        [inspect]="--tensors --cpu --json -h --help"
        [synth]="--arch -o --output --seed --type -t --threads --tiny --list -h --help"
        [bench]="-m --model --tune -p --n-prompt -n --n-gen --depth -r --repetitions --cold --no-prime --once --text -f --file --json -t --threads --exact --set -h --help"
        [sim]="--soc --model --prompt --gen --chunk --policy --steal-above --load --bits --attention --ratio --one-core --npu-memory --switch --accepted --vary --trace --svg --json --list -h --help"
    )
    local -A models=(
        [run]="-m --model"
        [chat]="-m --model"
        [serve]="-m --model"
        [ask]="-m --model"
        [rag]="-m --model"
        [tokenize]="-m --model"
        [eval]="-m --model"
        [bench]="-m --model"
    )
    local -A files=(
        [run]="-f --file --chat-template --grammar --json-schema --store --load-session --save-session --trace"
        [chat]="--store --chat-template --grammar --json-schema"
        [serve]="--api-key-file --chat-template"
        [ask]="--store --trace --chat-template"
        [rag]="--store"
        [forget]="--store"
        [eval]="--data"
        [pack]="-o --output --calib"
        [synth]="-o --output"
        [bench]="--text -f --file"
        [sim]="--trace --svg"
    )
    local -A texts=(
        [run]="-p --prompt --system --stop -n --n-predict --temp --top-k --top-p --min-p --seed -t --threads -c --ctx-size --pack --grammar-after"
        [chat]="--system --on-full -n --n-predict --temp --top-k --top-p --min-p --seed -t --threads -c --ctx-size --pack --grammar-after"
        [serve]="--host --port --model-name -c --ctx-size --sessions --queue --cache-size --on-full --draft -t --threads --pack"
        [ask]="-k --passages --system -n --n-predict --temp --top-k --top-p --min-p --seed -t --threads -c --ctx-size --pack"
        [rag]="--passage --overlap --max-file"
        [eval]="--task -c --ctx-size --protocol --kl --against --limit --draft -t --threads"
        [pack]="--scheme -b --bits --quality --allocation --bits-scope --outliers --calib-tokens --calib-window --prune --prune-error --outlier-share -t --threads"
        [synth]="--arch --seed --type -t --threads"
        [bench]="-p --n-prompt -n --n-gen --depth -r --repetitions --once -t --threads"
        [sim]="--soc --model --prompt --gen --chunk --policy --steal-above --load --bits --attention --ratio --npu-memory --switch --accepted --vary"
    )
    local -A words=(
        [rag]="add ls rm"
        [cache]="ls add rm clear path"
        [sim]="sweep reproduce"
        [bench]="limits"
    )
    local -A values=(
        [exact]="on off"
        [attention]="full shadow auto float-sparse block-sparse npu-full"
        [attention-decode]="on off"
        [weights]="auto packed tiles"
        [load]="stream overlap sequential mmap"
        [read]="threads threads-direct uring uring-direct"
        [policy]="in-order overlap ooe synergy"
        [steal]="none share-cores measured"
        [ignore-eos]="on off"
        [draft-eager]="on off"
        [no-chunk-sharing]="on off"
        [cold-rows]="file weights"
        [npu-separate-weights]="on off"
        [switch]="progressive async sync"
        [npu-apart]="on off"
        [no-head-ratios]="on off"
        [attention-whole]="on off"
        [attention-pipeline]="auto on off"
        [attention-check]="on off"
    )
    local parameters="n-predict temp top-k top-p min-p seed threads ctx-size exact repeat-penalty repeat-last-n draft draft-nodes attention attention-decode ratio attention-threshold weights load read chunk policy steal npu npu-threads cpu-threads max-memory npu-memory npu-vtcm ignore-eos draft-eager scheme no-chunk-sharing cold-rows npu-separate-weights switch switch-blocks npu-apart buckets no-head-ratios attention-share attention-pool attention-whole attention-pipeline attention-plan attention-check"
    local line="${COMP_LINE:0:COMP_POINT}" command="" i
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
