#!/bin/sh
# environment.sh VENV PYTHON book|all: make sure that VENV holds the pinned packages: those that
# build the book, or all of them and the package `src`. PYTHON may be empty.
# Does nothing when they are there already. Plain POSIX shell, since nothing else is installed yet.
set -eu
venv=$1
wanted=$2
level=$3

case $level in
    book) packages="-r requirements-book.txt" size="a minute and about 0.5 GB" ;;
    all) packages="-r requirements.txt -e ." size="a few minutes and about 6 GB" ;;
    *) echo "environment.sh: the third argument must be book or all, got '$level'." >&2; exit 2 ;;
esac

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
state="$(pwd) $(cat requirements.txt requirements-book.txt pyproject.toml | cksum)"
if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c "$fits" 2>/dev/null; then
    has=$("$venv/bin/python" -c "$version")
    if [ -z "$wanted" ] || [ "$has" = "$found" ]; then
        # Another folder than this one wrote it: begin anew. Other pins, fewer packages, or an
        # installation that was cut off: install over it.
        case "$(cat "$venv/.state" 2>/dev/null || :)" in
            "$state all"|"$state $level") exit 0 ;;
            "$(pwd) "*) keep=yes ;;
            '') if "$venv/bin/python" -c 'import pip' 2>/dev/null; then keep=yes; fi ;;
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

echo "Installing the pinned packages into $venv ($size the first time)."
rm -f "$venv/.state"
"$venv/bin/python" -m pip install -q --disable-pip-version-check $packages
# What only the tests need may be of older pins still, until they install it.
[ "$level" = book ] || "$venv/bin/python" -m pip check
printf '%s\n' "$state $level" > "$venv/.state"
