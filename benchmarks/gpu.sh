#!/usr/bin/env bash
# Everything that needs a GPU, in under 8 minutes, on a bare CUDA machine without network:
#
#     bash benchmarks/gpu.sh [OUT]          # results go to OUT/gpu.txt, a trace to OUT/trace.json
#     LONG=1 bash benchmarks/gpu.sh         # 800 rounds of FedTOGA instead of 20, which takes some minutes more
#     DEVICE=cpu bash benchmarks/gpu.sh     # the same pieces, tiny, where there is no GPU
#
# Carry, as wheels beside a machine that has Python >= 3.11 with torch and torchvision for its CUDA
# (pip download --no-deps -d wheels NAME): lightning lightning-utilities pytorch-lightning torchmetrics click
# docstring-parser pyyaml packaging tqdm; those of tensorboard and rich with what they need; matplotlib, scikit-learn,
# pillow, scipy, numpy where they are missing. WHEELS=DIR installs them. For the rows against others also a checkout of
# FL-Simulator (FL_SIMULATOR=DIR), a virtual environment with pfl[pytorch] (PEERS_PYTHON=PROGRAM) and the folder with
# time_pfl.py (PEERS=DIR); rows whose other is missing are left out, and said to be.
set -u
cd "$(dirname "$0")/.."
OUT=${1:-/tmp/fl_lightning-gpu} PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-cuda}
mkdir -p "$OUT"
exec > >(tee "$OUT/gpu.txt") 2>&1
if [ -n "${WHEELS:-}" ]; then
  "$PYTHON" -m pip install --quiet --no-index --no-deps "$WHEELS"/*.whl
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
END=$((SECONDS + 470))
ROUNDS=20 LIMIT=40 TURNS=5 EPOCHS=5 TRIAL=() FEW=() WAYS=(--rounds 5)
if [ "$DEVICE" = cpu ]; then
  ROUNDS=2 TURNS=1 EPOCHS=1 TRIAL=(--clients 1) FEW=(--samples 20) WAYS=(--rounds 1 --clients 2 --only sequential)
fi
if [ -n "${LONG:-}" ]; then ROUNDS=800 LIMIT=600 END=$((SECONDS + 1000)); fi

piece() { # seconds at most, then a command; one that fails or takes too long does not end the others
  local limit=$1 left=$((END - SECONDS))
  shift
  [ "$left" -gt 5 ] || { echo "no time left for: $*"; return; }
  echo "== $*"
  timeout "$((limit < left ? limit : left))" "$@" || echo "FAILED or out of time ($?): $*"
}

nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv 2>/dev/null || echo "no nvidia-smi"

ours() { piece "$1" "$PYTHON" benchmarks/ours.py --accelerator "$DEVICE" --rounds "$ROUNDS" "${TRIAL[@]}" "${@:2}"; }
ways() { piece "$1" "$PYTHON" benchmarks/local_steps.py --accelerator "$DEVICE" "${FEW[@]}" "${@:2}" "${WAYS[@]}"; }

# every way to train the same clients: one after another, stacked, each plain, compiled and as a CUDA graph
ways 60 --model pfl --precision bf16-mixed --clients 50 --width 50
ways 60 --model lenet --algorithm fedtoga --precision bf16-mixed
ways 90 --model resnet18_gn --algorithm fedtoga --precision bf16-mixed
ways 30 --model lenet --algorithm fedtoga --only "sequential,stacked 10"
ways 30 --model resnet18_gn --algorithm fedtoga --only sequential
# 10 clients x 50 steps, evaluation every 10 rounds: 800 rounds take (all rounds) x 800 / ROUNDS; LONG=1 runs them all
ours "$LIMIT" --model resnet18_gn --algorithm fedtoga --precision bf16-mixed --epochs "$EPOCHS" --evaluate-every 10
piece 40 "$PYTHON" benchmarks/split.py --accelerator "$DEVICE" --model resnet18_gn --algorithm fedtoga --rounds 2 \
  "${FEW[@]}" --profile "$OUT/trace.json"
piece 30 "$PYTHON" benchmarks/split.py --accelerator "$DEVICE" --model lenet --algorithm fedtoga --rounds 3 "${FEW[@]}"
if [ -n "${FL_SIMULATOR:-}" ]; then
  for model in lenet resnet18_gn; do
    piece 60 "$PYTHON" benchmarks/fl_simulator.py --path "$FL_SIMULATOR" --device "$DEVICE" --model $model \
      --method fedavg,fedspeed --turns "$TURNS"
  done
else
  echo "FL-Simulator left out: FL_SIMULATOR is not set"
fi
if [ -n "${PEERS_PYTHON:-}" ] && [ -n "${PEERS:-}" ]; then
  piece 120 "$PYTHON" benchmarks/engines.py --peers "$PEERS" --peers-python "$PEERS_PYTHON" --device "$DEVICE" \
    --passes 1 --rounds 5 --only pfl-1,pfl-3,pfl-5,ours-1,ours-1-bf16
else
  echo "pfl left out: PEERS and PEERS_PYTHON are not set"
fi
echo "done after $SECONDS s"
