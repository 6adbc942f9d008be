# make book    build the HTML book
# make check   run the fast checks, in two minutes: what one does after changing a line
# make test    run every check: unit tests, notebooks, the built book
#
# Needs Python 3.11 or newer and make; everything else is installed into .venv here. The book needs
# less than the tests, so PyTorch comes only with what runs code of the course.
# Choose an interpreter with  make book PYTHON=python3.12

SHELL = /bin/sh
PYTHON =
VENV = .venv
PY = $(VENV)/bin/python

# One thread a process: more is slower for small matrices, and results stay equal between machines.
# No test and no page may ask a model hub for anything.
export OMP_NUM_THREADS = 1
export HF_HUB_OFFLINE = 1

NOTEBOOKS = $(sort $(wildcard notebooks/*.ipynb))
BOOK_SOURCES = Makefile _config.yml _toc.yml requirements.txt requirements-book.txt tests/faults.py \
	$(wildcard book/*.md book/*.bib book/*.json book/*.yml tools/*.py _static/* _templates/*) \
	$(wildcard src/*.py src/*/*.py src/*/*.json src/live/*) $(NOTEBOOKS)
BUILT = _build/.built

.PHONY: help environment book-environment book pdf check lint mutants test colab oldest newest execute \
	experiments benchmarks steady repository clean

help:
	@echo "make book               build the HTML book"
	@echo "make pdf                the same, and print it as one PDF (needs Chromium)"
	@echo "make check              run the fast checks: all but processes, browser and training"
	@echo "make lint               Ruff's rules and format"
	@echo "make test               run every check (unit tests, notebooks, the book)"
	@echo "make colab              run every notebook in a simulated Colab (six minutes)"
	@echo "make oldest             run the package's tests and the notebooks with the oldest versions"
	@echo "make newest             that pyproject.toml allows, or with the newest on the index"
	@echo "make execute            run all notebooks again and store their outputs;"
	@echo "                        NOTEBOOKS=notebooks/X.ipynb for one"
	@echo "make experiments        measure the long experiments again (an hour and a half)"
	@echo "make steady             run all notebooks with other seeds, kernels and threads"
	@echo "make mutants            change the package and see whether a test notices (an hour)"
	@echo "make benchmarks         measure the speed beside other libraries again (quiet machine)"
	@echo "make repository         move the project to where git's origin is, or to URL=https://github.com/…"
	@echo "make clean              delete the built book (the environment stays)"

environment:
	@sh tools/environment.sh "$(VENV)" "$(PYTHON)" all

book-environment:
	@sh tools/environment.sh "$(VENV)" "$(PYTHON)" book

book: book-environment
	@$(MAKE) --no-print-directory $(BUILT)
	@echo "The book is built. Open _build/html/index.html in a browser."

pdf: environment
	@$(MAKE) --no-print-directory $(BUILT)
	@$(PY) tools/pdf.py

# The stamp is written only after a build without a warning, so a failed build is never kept.
# Building afresh takes seconds and leaves no page of a chapter that is gone.
$(BUILT): $(BOOK_SOURCES)
	@rm -rf _build
	$(VENV)/bin/jupyter-book build . -W -n --keep-going
	@touch $@

# Plug-in nbval takes seconds to load, and only notebooks need it.
check: environment lint
	$(PY) -m pytest -q -n 2 -p no:nbval -m "not slow" tests

lint: environment
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

test: environment
	@sh tools/run_tests.sh "$(MAKE)" "$(PY)"

colab: environment
	COLAB=all $(PY) -m pytest -q -n 2 tests/test_colab.py

# Each in an environment of its own: what is pinned, and what the book needs, is not there.
oldest newest:
	@sh tools/versions.sh $@ "$(PYTHON)"

execute: environment
	$(PY) tools/repository.py sync $(NOTEBOOKS)
	$(PY) tools/readme.py
	set -e; for notebook in $(NOTEBOOKS); do \
		$(VENV)/bin/jupyter nbconvert --to notebook --execute --inplace \
			--ExecutePreprocessor.record_timing=False \
			--ExecutePreprocessor.timeout=1800 "$$notebook"; \
	done
	$(VENV)/bin/jupyter nbconvert --to notebook --inplace --coalesce-streams $(NOTEBOOKS)

# Each script writes src/results/NAME.json, which the chapters read, plot and assert.
experiments: environment
	set -e; for script in benchmarks/[a-z]*.py; do \
		$(PY) -m "benchmarks.$$(basename "$$script" .py)"; \
	done

# One script a table row of the page "How fast is it"; `tools/gpu.sh` measures a GPU.
benchmarks: environment
	set -e; for name in training mixed_lengths decoding attention_memory matmul_share \
			bfloat16 plan; do \
		$(PY) -m benchmarks.speed.$$name; \
	done

# Other seeds, then other kernels and threads: see the page "How we know".
steady: environment
	$(PY) tools/steady.py seeds $(NOTEBOOKS)
	$(PY) tools/steady.py machines $(NOTEBOOKS)

# Changes of one operator at a time, and whether a test notices: see the page "How we know".
mutants: environment
	$(PY) tools/mutants.py $(MODULES)

repository: book-environment
	@$(PY) tools/repository.py set $(if $(URL),"$(URL)")

clean:
	rm -rf _build
