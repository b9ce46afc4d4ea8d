# `make demo` and `make test` set everything up on a bare machine with Python 3.11.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Output folder of the demo; flags of `bcls demo` can be added with DEMO_FLAGS="--seeds 1".
DEMO_OUT   ?= bcls-demo
DEMO_FLAGS ?=

.PHONY: help demo test test-all lint accessibility bench gpu coverage docs notebooks evidence photo fuzz faults mutants audit release clean

help:
	@echo "make demo      train four losses on synthetic scenes, about 4 minutes on 2 cores, and write $(DEMO_OUT)/report.html"
	@echo "make test      lint, types and the default tests with the coverage gate (under 10 minutes on 2 cores)"
	@echo "make test-all  the default tests and those marked slow"
	@echo "make lint      ruff and mypy"
	@echo "make accessibility  every page in every size and color scheme with axe-core"
	@echo "make coverage  the tests with the coverage of the whole package"
	@echo "make bench     speed and memory of losses and evaluation, as ratios measured in one run"
	@echo "make gpu       the tests and benchmarks that need an NVIDIA GPU, and docs/performance.md"
	@echo "make evidence  the paper's experiments on Flickr8k: DATA=folder JUDGEMENTS=folder, hours on a GPU"
	@echo "make photo     the model that ships in the package, from the same folders"
	@echo "make fuzz      100,000 damaged files for every reader, about two hours"
	@echo "make faults    full disks, kills and truncated files; writes docs/faults.md"
	@echo "make mutants   mutation testing of losses and metrics, about an hour"
	@echo "make audit     the installed packages against their hashes, and a bill of materials"
	@echo "make release   reproducible wheel and sdist in dist"
	@echo "make docs      the documentation site in docs/_build"
	@echo "make notebooks execute the notebooks in docs/notebooks and store their outputs, a few minutes"
	@echo "make clean     remove everything that the other targets created"

$(VENV)/.demo: pyproject.toml constraints.txt requirements.lock scripts/setup.sh
	sh scripts/setup.sh "$(PYTHON)" "$(VENV)" all
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt requirements.lock scripts/setup.sh
	sh scripts/setup.sh "$(PYTHON)" "$(VENV)" dev
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/bcls demo --out "$(DEMO_OUT)" $(DEMO_FLAGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# In the order of collection: xdist would run files with few tests last, of which some take longest.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" --durations 20 --cov --cov-fail-under=100

test-all: lint
	$(BIN)/pytest --cov --cov-fail-under=100

accessibility: $(VENV)/.dev
	$(BIN)/pytest tests/web/test_browser.py -k test_accessibility

coverage: $(VENV)/.dev
	$(BIN)/pytest -m "not slow" --cov --cov-config=tests/coverage.ini --cov-fail-under=95

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.losses
	$(BIN)/python -m benchmarks.evaluation

# With a torch for CUDA in place of the pinned one for CPUs: make gpu BIN=/path/to/its/bin
gpu:
	$(BIN)/python -m pytest -m cuda tests
	set -e; for b in kendall kernels; do $(BIN)/python -m benchmarks.$$b --json results/bench/$$b.json; done
	set -e; for b in "cross_attention --graph" decoding micro_batches roofline training; do \
	    $(BIN)/python -m benchmarks.$$b --device cuda --json results/bench/$${b%% *}.json; done
	$(BIN)/python -m scripts.performance_page

# DATA is the imported dataset, JUDGEMENTS the folder with ExpertAnnotations.txt and CrowdFlowerAnnotations.txt.
DATA       ?= flickr8k
JUDGEMENTS ?= flickr8k-release
SWEEPS     := dual vsepp tuned both-search sgr saf convergence alpha alpha-models beta lines gamma batch
TESTED     := dual vsepp tuned together sgr saf sgraf words record paper-exact finalists beyond both both-search
FOUR       := --backbone efficientnet-lite0+efficientnet-lite1+efficientnet-lite2 --regions global --view four-crop --name lite012-four
evidence: $(VENV)/.dev
	$(BIN)/bcls data features "$(DATA)" --backbone efficientnet-lite0+efficientnet-lite2 --regions global --name lite02
	$(BIN)/bcls data features "$(DATA)" $(FOUR)
	$(BIN)/bcls data features "$(DATA)" --backbone efficientnet-lite2 --regions 36 --name grid
	$(BIN)/bcls data features "$(DATA)" --backbone efficientnet-lite0+efficientnet-lite1+efficientnet-lite2 --regions crops-36 --view mirrored --name crops
	$(BIN)/bcls labels embed "$(DATA)" --encoder minilm
	set -e; for s in $(SWEEPS); do $(BIN)/bcls sweep configs/flickr8k/sweeps/$$s.yaml --data "$(DATA)" --out sweeps/$$s; done
	$(BIN)/bcls sweep configs/flickr8k/sweeps/variants.yaml --data "$(DATA)" --out sweeps/variants --judgements "$(JUDGEMENTS)"
	test -d sweeps/sgraf/runs || { mkdir -p sweeps/sgraf && cp -r sweeps/saf/runs sweeps/sgr/runs sweeps/sgraf; }
	set -e; for s in $(TESTED); do \
	    $(BIN)/bcls sweep configs/flickr8k/sweeps/$$s.yaml --data "$(DATA)" --out sweeps/$$s --final --judgements "$(JUDGEMENTS)"; done
	$(BIN)/bcls sweep configs/paper/noise.yaml --data sweeps/scenes --out sweeps/noise
	$(BIN)/python -m scripts.gallery_page sweeps/both-search --data "$(DATA)"
	$(BIN)/python -m scripts.evidence_page $(addprefix sweeps/,$(sort $(SWEEPS) $(TESTED)) variants noise)
	$(BIN)/python -m scripts.model_table

# Photos to select the settings of the open vocabulary: the stamps of Tux Paint.
STAMPS ?= /usr/share/tuxpaint/stamps
photo: $(VENV)/.dev
	$(BIN)/bcls data features "$(DATA)" --backbone efficientnet-lite0+efficientnet-lite1+efficientnet-lite2 --regions global --name lite012
	$(BIN)/pip download -q --no-deps -d sweeps/wheels scikit-image==0.26.0 scikit-learn==1.9.1
	set -e; for w in sweeps/wheels/*.whl; do $(BIN)/python -m zipfile -e $$w sweeps/outside; done
	test -d "$(STAMPS)" || { echo "install the Debian package tuxpaint-stamps-default, or set STAMPS to its folder of stamps"; exit 2; }
	set -e; for n in photo photo-fast; do $(BIN)/python scripts/photo_model.py --name $$n --data "$(DATA)" \
	    --judgements "$(JUDGEMENTS)" --stamps "$(STAMPS)" --outside sweeps/outside --out sweeps/photo --final; done

# 100,000 damaged files for each reader, about two hours; `--readers zip tar` for some.
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz --cases 100000

faults: $(VENV)/.dev
	BCLS_FAULTS=results/faults.json $(BIN)/pytest tests/faults --deselect tests/faults/test_page.py
	$(BIN)/python scripts/faults_page.py

mutants: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.mutants

audit: $(VENV)/.dev
	$(BIN)/python scripts/audit.py
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible -o sbom.json $(BIN)/python

release: $(VENV)/.dev
	sh scripts/release.sh $(BIN)/python dist
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build

notebooks: $(VENV)/.dev
	$(BIN)/python scripts/notebooks.py

clean:
	rm -rf $(VENV) build dist docs/_build docs/_generated .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage "$(DEMO_OUT)"
