#!/bin/sh
# environment.sh VENV [PYTHON]: make sure that VENV holds the pinned packages and the package `src`.
# Does nothing when it does already. Plain POSIX shell, since nothing else is installed yet.
set -eu
venv=$1
wanted=${2:-}

fits='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'
version='import sys; print("%d.%d" % sys.version_info[:2])'

if [ -n "$wanted" ]; then
    if ! found=$("$wanted" -c "$version" 2>/dev/null); then
        echo "PYTHON=$wanted cannot be run; the course needs Python 3.11 or newer." >&2
        exit 1
    elif ! "$wanted" -c "$fits" 2>/dev/null; then
        echo "PYTHON=$wanted is Python $found (or lacks its venv module);" \
            "the course needs Python 3.11 or newer with venv." >&2
        exit 1
    fi
fi

# What the environment depends on. The folder is part of it: scripts in a venv hold its path.
state="$(pwd) $(cat requirements.txt pyproject.toml | cksum)"
if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c "$fits" 2>/dev/null; then
    has=$("$venv/bin/python" -c "$version")
    if [ -z "$wanted" ] || [ "$has" = "$found" ]; then
        [ "$(cat "$venv/.state" 2>/dev/null)" = "$state" ] && exit 0
        # Another folder than this one wrote it: begin anew. Other pins: install over it.
        case "$(cat "$venv/.state" 2>/dev/null || :)" in
            ''|"$(pwd) "*) keep=yes ;;
        esac
    fi
fi

if [ -z "${keep:-}" ]; then
    if [ -z "$wanted" ]; then
        for candidate in python3.13 python3.12 python3.11 python3; do
            if "$candidate" -c "$fits" 2>/dev/null; then
                wanted=$candidate
                break
            fi
        done
    fi
    if [ -z "$wanted" ]; then
        echo "No Python 3.11 or newer (with its venv module) was found; install one or pass PYTHON=/path/to/python3." >&2
        exit 1
    fi
    echo "Creating $venv with $wanted."
    "$wanted" -m venv --clear "$venv"
fi

echo "Installing the pinned packages into $venv (a few minutes and about 6 GB the first time)."
rm -f "$venv/.state"
"$venv/bin/python" -m pip install -q --disable-pip-version-check -r requirements.txt -e .
"$venv/bin/python" -m pip check
printf '%s\n' "$state" > "$venv/.state"
