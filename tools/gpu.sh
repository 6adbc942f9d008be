#!/bin/sh
# gpu.sh: on a machine with one GPU, run the tests that need one, then the measurements that the
# page "How fast is it" shows. Every part runs, also after one has failed; exits 1 if any failed.
# All time limits together stay below eight minutes. With OUT=FOLDER the results are copied there.
set -u
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
status=0
summary=

part() {
    limit=$1
    shift
    printf '\n== %s\n' "$*"
    if timeout -k 3 "$limit" "$python" -m "$@"; then
        summary="$summary
passed: $*"
    else
        code=$?  # 124: the time ran out
        status=1
        summary="$summary
FAILED ($code): $*"
    fi
}

part 100 pytest -q -m gpu tests
part 220 benchmarks.speed.gpu
part 45 benchmarks.speed.matmul_share
part 75 benchmarks.speed.attention_memory
part 20 benchmarks.speed.plan

if [ -n "${OUT:-}" ]; then
    for name in gpu matmul_share_cuda attention_memory_cuda plan; do
        if [ -f "src/results/speed_$name.json" ]; then
            cp "src/results/speed_$name.json" "$OUT/" || status=1
        fi
    done
fi
printf '\n== summary%s\n' "$summary"
exit $status
