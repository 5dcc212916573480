#!/usr/bin/env bash
# Make models/tern-tiny from nothing: tools/train/run.sh TEXT_FOLDER RUN_FOLDER [options of train.py]
# TEXT_FOLDER holds tinystories_1000.json, wikitext2_train_part.txt and tinyshakespeare.txt (see README.md here).
# RUN_FOLDER keeps tokenizer, checkpoint and loss curve; run again with the same folder to resume.
# Without options: the number of steps of the shipped model. On a GPU add --device cuda.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=$here/../../models/tern-tiny
python=${PYTHON:-python3}
text=${1:?text folder} run=${2:?run folder}
shift 2
[ $# -gt 0 ] || set -- --max-steps 5000
export OMP_NUM_THREADS=1
mkdir -p "$run"
[ -f "$run/tokenizer.json" ] || "$python" "$here/make_tokenizer.py" "$text" "$run/tokenizer.json"
if [ ! -f "$run/big/ckpt.pt" ]; then # copying forms in 6 layers, then the model grows to 10
    "$python" "$here/train.py" --out "$run" --text "$text" --stop-tok 14.25e6 "$@"
    "$python" "$here/grow.py" "$run" "$run/big"
fi
"$python" "$here/train.py" --out "$run/big" --text "$text" "$@"
"$python" "$here/export.py" "$run/big" "$model"
"$python" "$here/make_eval.py" "$text" "$model"
"$python" "$here/evaluate.py" "$model" "$text" --split test --eval "$model/eval"
