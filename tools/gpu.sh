#!/bin/sh
# gpu.sh: on a machine with one GPU, run the tests that need one, then the benchmark, whose result
# the page "How fast is it" shows. Within eight minutes on a current device.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
"$python" -m pytest -q -m gpu tests
"$python" -m benchmarks.speed.gpu
