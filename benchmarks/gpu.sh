#!/usr/bin/env bash
# Everything that needs a GPU, in under 8 minutes, on a bare CUDA machine without network:
#
#     bash benchmarks/gpu.sh [OUT]                      # results go to OUT/gpu.txt, a trace to OUT/trace.json.gz
#     LONG=1 WAY=branches bash benchmarks/gpu.sh [OUT]  # 800 rounds of FedTOGA alone, trained in this way (see ways.py)
#     PART=compiled bash benchmarks/gpu.sh [OUT]        # a part alone, rows, compiled or exact, with twice the patience
#     DEVICE=cpu bash benchmarks/gpu.sh                 # all pieces, tiny, where there is no GPU
#
# The machine needs Python >= 3.11 with torch >= 2.8 and torchvision for its CUDA, lightning >= 2.6, torchmetrics, click,
# tensorboard, rich, matplotlib, scikit-learn, scipy, pillow and ruamel.yaml. Carry in .whl/ what else there must be, and pfl
# (0.7 MB for an image that has the former; Python's version as there):
#
#     python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 -d .whl \
#       pfl==0.6.0 dill==0.4.1 dp-accounting==0.5.1 multiprocess==0.70.19 prv-accountant==0.2.0
#
# and in .gpu/ the others' programs (0.2 MB): time_pfl.py and common_cifar.py in .gpu/peers, and in .gpu/FL-Simulator a
# checkout of github.com/woodenchild95/FL-Simulator. Let .git/info/exclude name both folders. PEERS, PEERS_PYTHON and
# FL_SIMULATOR say where they are if not there. Rows whose other is missing are left out, and said to be.
#
# Nothing here changes the GPU's settings; several processes on it take turns, unless somebody has started NVIDIA's MPS.
set -u
cd "$(dirname "$0")/.."
OUT=${1:-/tmp/fl_lightning-gpu} PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-cuda} PART=${PART:-everything}
OUT=${OUT%/} FL_SIMULATOR=${FL_SIMULATOR:-.gpu/FL-Simulator}
PEERS=${PEERS:-.gpu/peers} PEERS_PYTHON=${PEERS_PYTHON:-$PYTHON}
if [ -n "${LONG:-}" ]; then PART=long; fi
if [ "$PART" = everything ]; then END=465 TIME_FACTOR=1; else END=590 TIME_FACTOR=2; fi
FEW=() SAMPLES=50 EPOCHS=5 ROUNDS=20 TURNS=5
EAGER=sequential,stacked,graph,branches,stacked-graph,stacked-unfold-graph # safe ones first
COMPILED=branches-compile,compile-graph,stacked-compile-graph
ENGINES=pfl-1,ours-1-bf16-branches,pfl-3,ours-1-bf16-stacked50-graph,pfl-5,ours-2-bf16-branches,pfl-2,pfl-4
ENGINES+=,ours-1-stacked50-graph,ours-3-bf16-graph,ours-5-bf16-graph
if [ "$DEVICE" = cpu ]; then # enough to see that every piece runs
  END=3000 TIME_FACTOR=6 FEW=(--clients 2 --samples 20) SAMPLES=10 EPOCHS=1 ROUNDS=2 TURNS=2
  COMPILED=branches-compile ENGINES=pfl-1,ours-1-bf16-branches,pfl-2,ours-2-stacked50-graph
fi
mkdir -p "$OUT"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} PYTHONUNBUFFERED=1
if compgen -G ".whl/*.whl" >/dev/null; then
  "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$OUT.site" .whl/*.whl
  export PYTHONPATH=$PYTHONPATH:$OUT.site
fi

piece() { # seconds at most, then a command; one that fails or takes too long does not end the others
  local limit=$(($1 * TIME_FACTOR)) left=$((END - SECONDS)) began=$SECONDS
  shift
  [ "$left" -gt 10 ] || { echo "no time left for: $*"; return; }
  echo "== $*"
  timeout -k 5 "$((limit < left ? limit : left))" "$@" || echo "FAILED or out of time ($?): $*"
  echo "took $((SECONDS - began)) s"
}

ways() { # seconds, seconds after which no further way is begun, model, precision, ways, more
  piece "$1" "$PYTHON" benchmarks/local_steps.py --accelerator "$DEVICE" --seconds "$(($2 * TIME_FACTOR))" --model "$3" \
    --precision "$4" --only "$5" "${FEW[@]}" "${@:6}"
}

rounds() { # seconds, rounds, way
  piece "$1" "$PYTHON" benchmarks/ours.py --accelerator "$DEVICE" --model resnet18_gn --algorithm fedtoga --rounds "$2" \
    --precision bf16-mixed --epochs "$EPOCHS" --evaluate-every "$((ROUNDS / 2))" --way "$3" --like-fl-simulator \
    "${FEW[@]:0:2}"
}

tests() { # seconds, more; in a copy of the package in which callbacks/ lies where it is installed to
  rm -rf "$OUT.copy" && mkdir -p "$OUT.copy" && cp -r fl_lightning "$OUT.copy" && cp -r callbacks "$OUT.copy/fl_lightning"
  piece "$1" env PYTHONPATH="$OUT.copy:$PYTHONPATH" "$PYTHON" -P -m pytest -q -x -p no:cacheprovider \
    -o filterwarnings=default tests/test_cuda.py tests/federation/test_client_store.py "${@:2}"
}

# FedTOGA's round is 10 clients x 50 steps of 50 samples; FL-Simulator's FedSpeed is beside it
TOGA=(--algorithm fedtoga --epochs "$EPOCHS" --rounds 1 --like-fl-simulator)
if [ -d "$FL_SIMULATOR" ]; then TOGA+=(--fl-simulator "$FL_SIMULATOR"); fi

rows() { # those of the issue, in what takes no time to compile
  ways 120 70 resnet18_gn bf16-mixed "$EAGER" "${TOGA[@]}"
  local best
  sleep 1 # until tee has written it
  best=$(sed -n 's/^=> resnet18_gn.*best is \([^,]*\),.*/\1/p' "$OUT/gpu.txt")
  ways 70 40 lenet bf16-mixed "$EAGER" "${TOGA[@]}"
  if [ -f "$PEERS/time_pfl.py" ] && "$PEERS_PYTHON" -c "import pfl" 2>/dev/null; then
    piece 150 "$PYTHON" benchmarks/engines.py --peers "$PEERS" --peers-python "$PEERS_PYTHON" --device "$DEVICE" \
      --passes 1 --rounds "$TURNS" --limit "$((40 * TIME_FACTOR))" --seconds "$((110 * TIME_FACTOR))" --only "$ENGINES"
  else
    echo "pfl left out: there is no $PEERS/time_pfl.py, or $PEERS_PYTHON has no pfl"
  fi
  rounds 45 "$ROUNDS" "${WAY:-${best:-branches}}" # with evaluation every 10 of them; from these the time of 800
}

compiled() { # kernels of torch.compile, which take up to a minute each
  ways 60 30 lenet bf16-mixed "$COMPILED" "${TOGA[@]}"
  ways 110 60 resnet18_gn bf16-mixed "$COMPILED" "${TOGA[@]}"
}

exact() { # do all ways agree in float32; what TF32 and cuDNN's choices bring; where an eager round's time goes
  tests 60 -k "not compiled"
  local same=fp32,graph-fp32,stacked-graph-fp32,stacked-unfold-graph-fp32,branches-fp32
  ways 40 20 lenet 32-true $same,branches --algorithm fedtoga --rounds 2
  ways 40 20 pfl 32-true bare,$same,branches --rounds 2
  piece 30 "$PYTHON" benchmarks/split.py --accelerator "$DEVICE" --model lenet --algorithm fedtoga --rounds 2 "${FEW[@]:2}"
  piece 40 "$PYTHON" benchmarks/split.py --accelerator "$DEVICE" --model resnet18_gn --algorithm fedtoga --rounds 2 \
    --samples "$SAMPLES" --profile "$OUT/trace.json.gz"
}

everything() { rows; compiled; exact; }

long() { rounds 590 800 "${WAY:-branches}"; }

{
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv 2>/dev/null || echo "no nvidia-smi"
  [ -d "$FL_SIMULATOR" ] || echo "FL-Simulator left out: there is no folder $FL_SIMULATOR"
  "$PART"
} 2>&1 | tee "$OUT/gpu.txt"
echo "== in short, after $SECONDS s"
grep "^=> \|left out\|FAILED\|no time left" "$OUT/gpu.txt"
