#!/usr/bin/env bash
# All checks that need a GPU, most valuable first, for a GPU machine that is borrowed for minutes. See docs/gpu.md.
#
#   make gpu-pack                    beforehand, on your machine: fill .gpu-check/, which git ignores
#   OUT=out tools/gpu_check.sh run   on the GPU machine, with a copy of the repository and of .gpu-check/
#   make test-bare                   run most steps on a CPU, with a tiny network and what a bare GPU machine has
#
# Each step is a process with a time limit. It appends every row to $OUT/results.jsonl at once, so that an interruption
# loses one row. Variables for `run`:
#
#   STEPS="correct:80 rates:90"   steps and their limits in seconds (default: all)
#   BUDGET=560                    seconds for all steps
#   PYTHON=python3                the Python that has JAX
#   TINY=1                        a tiny network and image, made on the spot
#
# $OUT gets at most eight files below 16 MB: results.jsonl, log.txt, hlo.txt.gz, trace.json.gz, ncu.csv, seg.npz,
# trained.tgz (weights, metrics.csv and validation.csv of each training) and jaxcache.tgz. The last holds what XLA
# compiled and tuned: put it into .gpu-check/ for a second call.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
export SCRATCH=${TMPDIR:-/tmp}/gpu-check.$UID
export PACK=${PACK:-$PWD/.gpu-check} PYTHONPATH=$PWD:$PWD/tools PYTHONUNBUFFERED=1
ALL="versions:40 correct:80 rates:110 flood1:100 floodfast:60 profile:50 torchconv:30 training:70 tests:90 machine:40 flood8:80
 deterministic:40 ncu:50 train_fib25:250 train_snemi3d:250"
LARGEST=16000000 # bytes of a file in $OUT
SHORTEST=15      # seconds; no step begins with less

pack() { # wheels, data, weights and reference: 41 MB
    local shared=${FFN_SHARED:-$PWD/../shared}/data platforms=() version
    for version in 2_28 2_27 2_24 2_17; do platforms+=(--platform "manylinux_${version}_x86_64"); done
    export OUT=$PACK
    mkdir -p "$PACK/wheels"
    "$PYTHON" -m pip --disable-pip-version-check download -q --no-deps --require-hashes --only-binary=:all: \
        --python-version 3.12 --implementation cp "${platforms[@]}" -d "$PACK/wheels" -r envs/carried.lock
    # not as slices: the machine has no package that reads them
    [[ -e $PACK/raw.zarr ]] || "$PYTHON" -m ffn ingest "$shared/fib25/raw" --voxel-size 10 10 10 --out "$PACK/raw.zarr"
    [[ -e $PACK/labels.zarr ]] || "$PYTHON" -m ffn ingest "$shared/fib25/labels_z000-170.h5:stack" \
        --voxel-size 10 10 10 --out "$PACK/labels.zarr"
    [[ -e $PACK/model/weights.h5 ]] || "$PYTHON" -m ffn import-checkpoint \
        "$shared/fib25_ffn_checkpoint/model.ckpt-27465036" --out "$PACK/model"
    [[ -e $PACK/reference.npz ]] || "$PYTHON" -m gpu_check reference
    [[ -e $PACK/records-snemi3d ]] || "$PYTHON" -m gpu_check records
    du -sh "$PACK"
}

run() {
    mkdir -p "$OUT" "$SCRATCH/jaxcache"
    exec > >(tee -a "$OUT/log.txt") 2>&1
    set_up
    local item step limit left rc
    for item in ${STEPS:-$ALL}; do
        step=${item%%:*} limit=${item##*:} left=$((${BUDGET:-560} - SECONDS))
        ((left > SHORTEST)) || { echo "== $step: no time left"; continue; }
        ((limit < left)) || limit=$left
        echo "== $step, at most $limit s, at $SECONDS s"
        rc=0
        LIMIT=$limit run_step "$step" || rc=$?
        echo "{\"step\": \"$step\", \"exit\": $rc, \"ended_at\": $SECONDS}" | tee -a "$OUT/results.jsonl"
        save_cache
    done
    echo "== summary"
    grep -E '"fovs_per_s"|"relative_real"|"error"|"exit": [1-9]' "$OUT/results.jsonl" | cut -c1-330 | tail -40
    ! grep -q '"exit": [1-9]' "$OUT/results.jsonl"
}

set_up() {
    if [[ -n ${TINY:-} ]]; then
        local again # other steps run the same code, and no test runs without a GPU
        for again in train_fib25:250 deterministic:40 tests:90; do ALL=${ALL/$again/}; done
        PACK=$SCRATCH/tiny
        rm -rf "$PACK"
        mkdir -p "$PACK"
        "$PYTHON" -m gpu_check tiny
        "$PYTHON" -m gpu_check records
        "$PYTHON" -m gpu_check reference
    else
        "$PYTHON" -m pip --disable-pip-version-check install -q --no-index --no-deps --no-compile --upgrade \
            --target "$SCRATCH/site" "$PACK"/wheels/*.whl
        PYTHONPATH+=:$SCRATCH/site
    fi
    export XLA_PYTHON_CLIENT_PREALLOCATE=false TF_CPP_MIN_LOG_LEVEL=1
    export JAX_COMPILATION_CACHE_DIR=$SCRATCH/jaxcache PYTHONPYCACHEPREFIX=$SCRATCH/pyc
    unset PYTHONDONTWRITEBYTECODE # or each step would compile Python's packages again
    export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1
    [[ ! -e $PACK/jaxcache.tgz ]] || tar xzf "$PACK/jaxcache.tgz" -C "$SCRATCH/jaxcache"
}

run_step() { # the step knows LIMIT and ends before; `timeout` is for what hangs: never a slow CPU
    local program=(timeout -k 5 "$((${TINY:+10 *} LIMIT))")
    case $1 in
        deterministic) XLA_FLAGS=--xla_gpu_deterministic_ops=true "${program[@]}" "$PYTHON" -m gpu_check training ;;
        ncu)
            command -v ncu || { echo "no ncu here"; return 0; }
            "${program[@]}" ncu --clock-control none --target-processes all --set basic --launch-skip 60 \
                --launch-count 45 --csv --page raw "$PYTHON" -m gpu_check onestep >"$OUT/ncu.csv" ;;
        tests) "${program[@]}" "$PYTHON" -m pytest -m gpu -W default -p no:cacheprovider @tests/bare.txt ;;
        *) "${program[@]}" "$PYTHON" -m gpu_check "$1" ;;
    esac
}

save_cache() {
    local saved=$OUT/jaxcache.tgz
    tar czf "$saved" -C "$SCRATCH/jaxcache" .
    (($(stat -c %s "$saved") < LARGEST)) || rm "$saved"
}

case ${1:-} in
    pack) pack ;;
    run)
        export OUT=${OUT:?is the folder for the results}
        run
        ;;
    *)
        sed -n '2,/^set/s/^# \?//p' "$0"
        exit 2
        ;;
esac
