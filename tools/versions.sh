#!/bin/sh
# versions.sh oldest|newest [PYTHON]: run the package's tests and all notebooks with the oldest
# versions that pyproject.toml allows, or with the newest there are. Outputs of notebooks are not
# compared: they were stored with the pinned versions. Every assertion is in force.
set -eu
case $1 in
    oldest) resolution=lowest-direct wanted=${2:-python3.11} ;;
    newest) resolution=highest wanted=${2:-python3} ;;
    *) echo "say oldest or newest, got $1" >&2; exit 2 ;;
esac
python=.venv-$1/bin/python

command -v "$wanted" >/dev/null || { echo "there is no $wanted here; pass PYTHON=…" >&2; exit 1; }
"$wanted" -m venv --clear ".venv-$1"
"$python" -m pip install -q --disable-pip-version-check uv
"$python" -m uv pip install -q --python "$python" --resolution "$resolution" -e ".[notebooks,tests]"
"$python" -m uv pip list --python "$python"

status=0
"$python" -m pytest -q --package tests || status=1
"$python" -m pytest -q -p tests.kernels --nbval-lax --nbval-current-env \
    --nbval-cell-timeout=1800 notebooks || status=1
exit $status
