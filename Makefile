# What `make` runs, job by job: t3 reproduce --dry-run; how: t3lib/lab/grid/reproduce.py
# make                  build .venv and regenerate the paper at profile cpu      make PROFILE=smoke  a first look, a few minutes
#                       in out/cpu, which git ignores                            make OUT=results/cpu  in the committed folder
# make test             pytest, then nbval on the notebooks (smoke parameters)
#                       T3_TEST_ORDER=7 make test   in the random order of seed 7
# make attacks          damaged and hostile files, full disks, signals, kill -9 of whole runs: results/faults.md
# .t3cache holds what was computed, by kind: du -sh .t3cache/* lists it, rm -rf .t3cache clears it (costs only time)
# make site             all results pages and executed notebooks as static files in build/site
PYTHON ?= python3
PROFILE ?= cpu
BIN = .venv/bin

# A mistyped profile is found before the environment is built.
ifneq ($(filter results,$(or $(MAKECMDGOALS),results)),)
ifeq ($(wildcard notebooks/profiles/$(PROFILE).yaml $(PROFILE)),)
$(error PROFILE=$(PROFILE) is not there: choose $(filter-out defaults,$(patsubst notebooks/profiles/%.yaml,%,$(wildcard notebooks/profiles/*.yaml))) or give a .yaml file)
endif
endif

.PHONY: results test attacks browser-test site lint clean
results: .venv/ready
	$(BIN)/t3 reproduce --profile $(PROFILE) $(if $(WORKERS),--workers $(WORKERS)) $(if $(OUT),--out $(OUT))

# uv is only a faster installer; it does not read pip's own settings, hence the hand-over of the wheel folder.
.venv/ready: requirements.lock pyproject.toml notebooks/jupyter_lab_config.json
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "t3lib needs Python 3.11: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	if command -v uv >/dev/null; then \
	  UV_FIND_LINKS="$$PIP_FIND_LINKS" uv pip install --quiet --python $(BIN)/python -r requirements.lock && \
	  uv pip install --quiet --python $(BIN)/python --no-deps -e .; \
	else \
	  $(BIN)/pip install --quiet -r requirements.lock && $(BIN)/pip install --quiet --no-deps -e .; \
	fi
	mkdir -p .venv/etc/jupyter && cp notebooks/jupyter_lab_config.json .venv/etc/jupyter/  # no pop-up about news
	touch $@

# One thread a process: two processes share two cores, and results do not depend on how many cores there are.
test: export OMP_NUM_THREADS = 1
test: .venv/ready
	$(BIN)/pytest tests -n 2 --dist worksteal
	$(BIN)/pytest --nbval-lax --nbval-current-env --nbval-cell-timeout 300 -n 2 --dist loadfile notebooks

attacks: export OMP_NUM_THREADS = 1
attacks: .venv/ready
	$(BIN)/python tests/attacks/run.py

browser-test: .venv/ready
	$(BIN)/pytest tests/browser.py

site: .venv/ready
	$(BIN)/python -m t3lib.lab.report.site build/site

lint: .venv/ready
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy t3lib

clean:
	rm -rf .venv .t3cache build dist *.egg-info
