#!/bin/sh
# run_tests.sh MAKE PYTHON: run every part of the checks, also after one has failed, then say how
# each went. Exits 1 if any failed.
set -u
make=$1
python=$2
status=0
results=

part() {
    name=$1
    shift
    printf '\n== %s\n' "$name"
    if "$@"; then
        results="$results
passed: $name"
    else
        status=1
        results="$results
FAILED: $name"
    fi
}

# Fetched once, before any test: a progress bar would be an output that no notebook stores.
part "data and weights are there, checksums verified" "$python" -m src.assets
part "the book builds without a warning" "$make" --no-print-directory _build/.built
part "Ruff's rules and format" "$make" --no-print-directory lint
# One worker a file: its tests share a browser, a corpus, a trained model. In the order of their
# names, which begins with long files and ends with short ones.
part "unit tests and checks of notebooks and book" "$python" -m pytest -q -n 2 --dist loadfile \
    --no-loadscope-reorder -p no:nbval --durations=10 tests
# One worker a notebook: its cells share a kernel.
part "notebooks give their stored outputs again" "$python" -m pytest -q \
    $(cat "${0%/*}/../tests/nbval.args") -n 2 --dist loadfile notebooks

printf '\n== summary%s\n' "$results"
exit $status
