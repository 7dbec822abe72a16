#!/usr/bin/env bash
# Measure Tercet on a machine with a GPU as it comes: nothing has to be installed, and no network is needed.
#
#     bash benchmarks/gpu.sh [SECONDS [STAGES]]        # 450, and "smoke rows runs"
#     bash benchmarks/gpu.sh 200 tests                 # the tests of a GPU; "profile"; "suite": the fast tests of the CPU
#
# python3 (or PYTHON) has PyTorch, Lightning and transformers; what else is needed is in .gpu (or TERCET_GPU_BUNDLE), a
# folder that `python -m benchmarks.gpu.bundle` fills beforehand. Results are written to OUT, by default build/gpu, as they
# come; those of an earlier call in .gpu/results are continued. TERCET_GPU_DRY=1 tries everything with tiny models, also
# without a GPU.
set -u
cd "$(dirname "$0")/.." || exit 1
budget=${1:-450}
stages=${2:-smoke rows runs}
out=${OUT:-build/gpu}
bundle=${TERCET_GPU_BUNDLE:-.gpu}
python=${PYTHON:-python3}
dry=${TERCET_GPU_DRY:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
if [ -d "$bundle/results" ]; then cp -n "$bundle"/results/* "$out"/; fi

left() { echo $((budget - SECONDS)); }
say() { printf '\n== %s (%s s left)\n' "$1" "$(left)"; }

export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export TERCET_CACHE="$work/cache" TERCET_KERNEL=off HF_HUB_OFFLINE=1
if [ -d "$bundle/data" ]; then TERCET_DATA=$(cd "$bundle/data" && pwd) && export TERCET_DATA; fi
if ! "$python" -c 'import beartype, fastapi, num2words, platformdirs, pydantic' 2>/dev/null; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
        --target "$work/site" "$bundle"/wheels/*.whl || exit 1
    export PYTHONPATH="$PYTHONPATH:$work/site"
fi
nanogpt=()
if [ -f "$bundle/nanogpt/train.py" ]; then nanogpt=(--nanogpt "$bundle/nanogpt"); fi

say "machine"
{
    date
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1
    "$python" -c 'import sys, torch
print("Python", sys.version.split()[0], "PyTorch", torch.__version__, "CUDA", torch.version.cuda)
print("GPU", torch.cuda.is_available())'
} | tee "$out/machine.txt"

for stage in $stages; do
    if [ "$(left)" -le 0 ]; then break; fi
    say "$stage"
    case $stage in
        smoke)
            small=(model.stack.n_layers=2 training.max_steps=20 training.compile=never task.batch_size=8)
            if [ -n "$dry" ]; then small+=(model.stack.d_model=24 model.max_len=16); fi
            { timeout "$(left)" "$python" -m tercet train nanogpt-gpu --out "$work/smoke" "${small[@]/#/--set=}" &&
                timeout "$(left)" "$python" -m tercet generate "$work/smoke" --prompt "ROMEO:" --max-new-tokens 40; } 2>&1 |
                tee "$out/smoke.txt"
            ;;
        profile)
            timeout "$(left)" "$python" -m benchmarks.gpu.profile_rows gpt-baby greedy-1 gpt-124m ${dry:+--tiny} \
                "${nanogpt[@]}" --out "$out" 2>&1
            ;;
        rows)
            # Whole runs take their time afterwards. A row that ends the program, by a fault of the GPU for example, is
            # tried again after all others.
            share=$(left)
            case $stages in *runs*) share=$((share * 2 / 3)) ;; esac
            end=$((SECONDS + share))
            for _ in 1 2 3; do
                if [ $((end - SECONDS)) -le 10 ]; then break; fi
                if timeout "$(left)" "$python" -m benchmarks.speed --device cuda "${nanogpt[@]}" --out "$out" --resume \
                    --budget $((end - SECONDS)) ${dry:+--scale tiny --rounds 2 --seconds 0.01}; then
                    break
                fi
            done 2>&1 | tee -a "$out/rows.txt"
            ;;
        runs)
            timeout "$(left)" "$python" -m benchmarks.gpu.whole_runs ${dry:+--tiny --goal 10} --budget "$(left)" \
                "${nanogpt[@]}" --out "$out" 2>&1
            ;;
        tests)
            timeout --signal=INT --kill-after=10 "$(left)" make test-gpu PYTHON="$python" ${dry:+TEST_DEVICE=cpu} 2>&1 | tee "$out/tests.txt"
            ;;
        suite)
            timeout "$(left)" env TERCET_KERNEL=auto OMP_NUM_THREADS=1 "$python" -m pytest -n "$(nproc)" -W default \
                -m "not slow and not exhaustive" tests 2>&1 | tee "$out/suite.txt"
            ;;
        *) echo "unknown stage: $stage; there are smoke, profile, rows, runs, tests and suite" >&2 && exit 2 ;;
    esac
done
say "written to $out"
ls "$out"
