#!/usr/bin/env bash
# Everything that needs a GPU: two commands of at most 6 minutes each, on a bare CUDA machine without network.
#
#     bash benchmarks/gpu.sh right [OUT]   # tests, users' commands; then which way is the fastest, beside FL-Simulator
#     bash benchmarks/gpu.sh fast [OUT]    # where a round's time goes; others' benchmarks, sweeps, many rounds, compiled code
#     DEVICE=cpu bash benchmarks/gpu.sh right [OUT]    # all pieces, tiny, where there is no GPU
#
# Results go to OUT/<command>.txt, traces for chrome://tracing to OUT: at most four files, below 16 MB each. Predictions (predictions.py)
# stand beside measurements. Before the command, END=500 gives it more seconds, and SKIP=1 leaves out tests and users' commands.
#
# The machine needs Python >= 3.11 with torch >= 2.8 and torchvision for its CUDA, lightning >= 2.6, torchmetrics, click, tensorboard, rich,
# matplotlib, pandas, jinja2, numpy, scikit-learn, scipy, pillow, typing-extensions, pytest and pytest-xdist. Carry in .whl/ what else there must
# be (without ruamel.yaml no test starts), and pfl (0.8 MB for an image that has the former; Python's version as there):
#
#     python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 -d .whl \
#       ruamel.yaml lazy-loader pfl==0.6.0 dill==0.4.1 dp-accounting==0.5.1 multiprocess==0.70.19 prv-accountant==0.2.0
#
# and in .gpu/ the others' programs (0.2 MB): time_pfl.py and common_cifar.py in .gpu/peers, and in .gpu/FL-Simulator a
# checkout of github.com/woodenchild95/FL-Simulator. Let .git/info/exclude name both folders. PEERS, PEERS_PYTHON and
# FL_SIMULATOR say where they are if not there. Rows whose other is missing are left out, and said to be.
#
# Nothing here changes the GPU's settings; several processes on it take turns, unless somebody has started NVIDIA's MPS.
set -u
cd "$(dirname "$0")/.."
COMMAND=${1:?right or fast} OUT=${2:-/tmp/fl_lightning-gpu}
PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-cuda} OUT=${OUT%/} FL_SIMULATOR=${FL_SIMULATOR:-.gpu/FL-Simulator}
PEERS=${PEERS:-.gpu/peers} PEERS_PYTHON=${PEERS_PYTHON:-$PYTHON}
END=${END:-330} TIME_FACTOR=1 PRECISION=bf16-mixed FEW=() RUNS=() TEST=() EPOCHS=5 ROUNDS=200 TURNS=20 REPEATS=3 CEILINGS=()
EAGER=branches,stacked-graph,graph,stacked,sequential,stacked-unfold-graph
COMPILED=branches-compile,compile-graph,stacked-compile-graph,compile
ENGINES=pfl-1,ours-1-bf16-stacked50-graph,pfl-3,ours-1-bf16-branches,pfl-2,ours-1-stacked50-graph
if [ "$DEVICE" = cpu ]; then # enough to see that every piece runs
  END=3000 TIME_FACTOR=6 PRECISION=32-true FEW=(--clients 2 --samples 20) RUNS=(--runs 2 --turns 1) TEST=(--test 20) EPOCHS=1 ROUNDS=2 TURNS=2 REPEATS=1
  CEILINGS=(--clients 2 --batch 2 --times 1 --megabytes 1 --layers "resnet 4") COMPILED=branches-compile ENGINES=pfl-1,ours-1-bf16-branches
fi
mkdir -p "$OUT"
# the package as it is installed
rm -rf "$OUT.copy" && mkdir -p "$OUT.copy" && cp -r fl_lightning "$OUT.copy" && cp -r callbacks recipes "$OUT.copy/fl_lightning"
export PYTHONPATH=$OUT.copy${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} PYTHONUNBUFFERED=1
export TORCHINDUCTOR_CACHE_DIR=$OUT.inductor
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

rounds() { # seconds, model, algorithm, way, rounds, more
  piece "$1" "$PYTHON" benchmarks/ours.py --accelerator "$DEVICE" --model "$2" --algorithm "$3" --way "$4" --rounds "$5" \
    --precision "$PRECISION" --epochs "$EPOCHS" "${FEW[@]}" "${TEST[@]}" "${@:6}"
}

split() { # model, algorithm, way
  piece 45 "$PYTHON" benchmarks/split.py --accelerator "$DEVICE" --model "$1" --algorithm "$2" --precision "$PRECISION" \
    --rounds 2 --way "$3" --profile "$OUT/$1-$2-$3.json.gz" "${FEW[@]:2}"
}

# FedTOGA's round is 10 clients x 50 steps of 50 samples; FL-Simulator's FedSpeed is beside it
TOGA=(--algorithm fedtoga --epochs "$EPOCHS" --rounds "$REPEATS" --like-fl-simulator)
if [ -d "$FL_SIMULATOR" ]; then TOGA+=(--fl-simulator "$FL_SIMULATOR"); fi

DIGITS=("$PYTHON" -P -m fl_lightning.recipes.digits --accelerator "$DEVICE")
SCAFFOLD=(--algorithm scaffold --deterministic)

users() { # what users type first; the digits are in scikit-learn
  rm -rf "$OUT.runs"
  piece 60 "${DIGITS[@]}" --run-dir "$OUT.runs/fedtoga" # on a CPU: 92 % after 100 rounds
  piece 60 "${DIGITS[@]}" --run-dir "$OUT.runs/branches" --algorithm fedlesam_d --executor branches --precision bf16-mixed --rounds 20
  piece 40 "${DIGITS[@]}" --run-dir "$OUT.runs/whole" "${SCAFFOLD[@]}" --rounds 20
  piece 40 "${DIGITS[@]}" --run-dir "$OUT.runs/halves" "${SCAFFOLD[@]}" --rounds 10
  piece 40 "${DIGITS[@]}" --run-dir "$OUT.runs/halves" "${SCAFFOLD[@]}" --rounds 20 --resume
  piece 20 "$PYTHON" -c "import filecmp, sys; sys.exit(not filecmp.cmp(*sys.argv[1:], shallow=False))" \
    "$OUT.runs/whole/model.pt" "$OUT.runs/halves/model.pt" # the same bits
  piece 90 "$PYTHON" -P -m fl_lightning table benchmarks/digits.yaml --seeds 0,1,2,3 --methods fedavg,fedtoga --stack 4 \
    --rounds 20 --jobs 1 --accelerator "$DEVICE" --runs "$OUT.runs/table" # on a CPU: 87.28 ± 1.44 and 93.40 ± 0.98
}

right() { # correctness first: no timing counts before
  piece 20 "$PYTHON" -P -c "import fl_lightning.experiment"
  if [ -z "${SKIP:-}" ]; then
    users >"$OUT.users" 2>&1 &
    piece 150 "$PYTHON" -P -m pytest -q -n 8 -p no:cacheprovider \
      -o filterwarnings=default tests/test_cuda.py tests/federation/test_row_transfers.py
    wait $!
    cat "$OUT.users"
  fi
  ways 110 60 resnet18_gn "$PRECISION" "$EAGER" "${TOGA[@]}" # each says how far its weights are from the first's
  ways 60 30 lenet "$PRECISION" "$EAGER" "${TOGA[@]}"
  piece 40 "$PYTHON" benchmarks/ceilings.py --accelerator "$DEVICE" "${CEILINGS[@]}"
}

pfl() { # pfl's own program for its CIFAR-10 benchmark, and ours
  if [ -f "$PEERS/time_pfl.py" ] && "$PEERS_PYTHON" -c "import pfl" 2>/dev/null; then
    piece 100 "$PYTHON" benchmarks/engines.py --peers "$PEERS" --peers-python "$PEERS_PYTHON" --device "$DEVICE" \
      --passes 1 --rounds "$TURNS" --limit "$((30 * TIME_FACTOR))" --seconds "$((70 * TIME_FACTOR))" --only "$ENGINES"
  else
    echo "pfl left out: there is no $PEERS/time_pfl.py, or $PEERS_PYTHON has no pfl"
  fi
}

fast() { # compiled code last; what many rounds take is in their last lines
  split lenet fedtoga stacked-graph
  split resnet18_gn fedtoga branches
  rounds 40 cnn fedavg stacked-graph "$TURNS" # FL-SAM's: 2.72 s a round on an RTX 4090, FedSMOO's 9.39 s
  rounds 40 cnn fedsmoo stacked-graph "$TURNS"
  # eight runs as one program, beside the same one after another
  piece 60 "$PYTHON" benchmarks/sweep.py --accelerator "$DEVICE" --model lenet --algorithm fedtoga --precision "$PRECISION" \
    --way stacked-graph --alone stacked-graph "${FEW[@]}" "${RUNS[@]}"
  pfl
  rounds 120 resnet18_gn fedtoga branches "$ROUNDS" --evaluate-every 10 --like-fl-simulator
  ways 50 25 lenet "$PRECISION" "$COMPILED" "${TOGA[@]}"
  ways 80 40 resnet18_gn "$PRECISION" "$COMPILED" "${TOGA[@]}"
  rounds 40 lenet fedtoga stacked-graph "$ROUNDS" --evaluate-every 10 --like-fl-simulator
  rounds 60 pfl fedavg stacked50-graph "$ROUNDS" --evaluate-every 10
}

{
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv 2>/dev/null || echo "no nvidia-smi"
  [ -d "$FL_SIMULATOR" ] || echo "FL-Simulator left out: there is no folder $FL_SIMULATOR"
  "$COMMAND"
} 2>&1 | tee "$OUT/$COMMAND.txt"
echo "== in short, after $SECONDS s"
grep "^=> \|left out\|FAILED\|no time left\|passed\|failed" "$OUT/$COMMAND.txt"
