#!/usr/bin/env bash
# Everything that needs a GPU, in under 8 minutes, on a bare CUDA machine without network:
#
#     bash benchmarks/gpu.sh [OUT]          # results go to OUT/gpu.txt, a trace to OUT/trace.json
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
ROUNDS=10 TURNS=5 TRIAL=() FEW=()
if [ "$DEVICE" = cpu ]; then ROUNDS=2 TURNS=1 TRIAL=(--clients 2) FEW=(--samples 20); fi

piece() { # seconds at most, then a command; one that fails or takes too long does not end the others
  local limit=$1 left=$((END - SECONDS))
  shift
  [ "$left" -gt 5 ] || { echo "no time left for: $*"; return; }
  echo "== $*"
  timeout "$((limit < left ? limit : left))" "$@" || echo "FAILED or out of time ($?): $*"
}

nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv 2>/dev/null || echo "no nvidia-smi"
ours() { piece "$1" "$PYTHON" benchmarks/ours.py --accelerator "$DEVICE" --rounds "$ROUNDS" "${TRIAL[@]}" "${@:2}"; }

for precision in 32-true bf16-mixed; do # one process, one client at a time and stacked
  ours 30 --model pfl --precision $precision
  ours 30 --model pfl --precision $precision --width 50
  for algorithm in fedavg fedtoga; do
    ours 30 --model lenet --algorithm $algorithm --precision $precision
    ours 30 --model lenet --algorithm $algorithm --precision $precision --width 10
  done
  ours 40 --model resnet18_gn --algorithm fedtoga --precision $precision
done
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
