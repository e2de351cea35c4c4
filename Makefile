# Every command of the course. `make` alone lists them.

.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
IMAGE ?= gpu-performance-lab
ENGINE ?=
ARGS ?=

# Stamps say that an installation was finished, and for which folder: a checkout that was moved is installed again,
# and so is one whose Python is gone.
STAMP := $(VENV)/.installed
READ_STAMP := $(VENV)/.installed-read
DEV_STAMP := $(VENV)/.installed-dev
SITE_STAMP := $(VENV)/.installed-site
UNFINISHED := $(VENV)/.unfinished

# What runs in the environment finds the environment's python3, and so do the programs that it starts.
# The folder may have any name: the shell asks for it (HERE), so that it reads no part of it as a word or a command.
HERE := $$(pwd -P)
IN_VENV := VIRTUAL_ENV="$(HERE)/$(VENV)" PATH="$(HERE)/$(BIN):$$PATH"

ifneq ($(shell test -x $(BIN)/python && cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): again
endif
ifneq ($(shell test -x $(BIN)/python && cat $(READ_STAMP) 2>/dev/null),$(CURDIR))
$(READ_STAMP): again
endif
ifneq ($(SYSTEM_PACKAGES),)
VENV_FLAGS := --system-site-packages
ifeq ($(shell grep -s 'include-system-site-packages = true' $(VENV)/pyvenv.cfg),)
$(STAMP): again
endif
endif

.PHONY: help lab read keras doctor test test-all test-gpu lint record notebooks images slides site container clean again

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'ARGS="…" hands options on, for example: make lab ARGS="--no-browser --port 9999"'
	@echo 'PYTHON=python3.12 chooses the Python; SYSTEM_PACKAGES=1 uses a torch that is installed already.'
	@echo 'FLOAT=1 makes .venv with the newest versions instead of those that were tested together.'

define JUPYTERLAB
@root=; if [ "$$(id -u)" = 0 ]; then root=--allow-root; fi; \
$(IN_VENV) $(1) $(BIN)/python -m jupyterlab --ip=127.0.0.1 --ServerApp.root_dir="$(HERE)" \
  --LabApp.default_url=/lab/tree/start_here.ipynb $$root $(ARGS)
endef

lab: $(STAMP) ## install the course into .venv and open it in JupyterLab
	$(call JUPYTERLAB)

# Where the whole course is installed, that will do.
READY := $(if $(wildcard $(STAMP)),$(STAMP),$(READ_STAMP))

read: $(READY) ## the same to read only: what was recorded, without PyTorch
	$(call JUPYTERLAB,LAB_MODE=recorded)

keras: $(STAMP) ## add Keras and TensorFlow, for labs 16 and 17 live
	$(call INSTALL,-e '.[keras]')

# Of what is installed, or before it of what would be: it installs nothing.
doctor: ## say what will work on this machine, and how to mend the rest
	$(call USABLE_PYTHON,doctor)
	@if [ -x $(BIN)/python ] && cat $(STAMP) $(READ_STAMP) 2>/dev/null | grep -qxF "$(HERE)"; then \
	  $(IN_VENV) $(BIN)/python -m labkit.doctor; \
	else PYTHONPATH="source_code$${PYTHONPATH:+:$$PYTHONPATH}" "$(PYTHON)" -m labkit.versions.before; fi

test: $(DEV_STAMP) ## run every notebook and the short tests, in minutes; needs no GPU and no nsys
	@$(IN_VENV) $(BIN)/python -m pytest tests/short -n auto --dist loadfile $(ARGS)

test-all: $(DEV_STAMP) ## run every test, and every notebook by nbval: what CI runs besides
	@$(IN_VENV) $(BIN)/python -m pytest --nbval start_here.ipynb labs tests -n auto --dist loadfile $(ARGS)

test-gpu: $(DEV_STAMP) ## run the notebooks live: needs a GPU and nsys
	@$(IN_VENV) LAB_MODE=live $(BIN)/python -m pytest --nbval --nbval-sanitize-with tests/live_sanitizer.cfg $(ARGS) start_here.ipynb labs

lint: $(DEV_STAMP) ## check the code's style
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .

record: $(STAMP) ## measure everything that the labs show, on this machine's GPU, into reports/recorded/
	@$(IN_VENV) $(BIN)/python -m labkit.recording $(ARGS)

notebooks: $(STAMP) ## run every notebook in recorded mode and store its outputs
	@$(IN_VENV) LAB_MODE=recorded $(BIN)/python -m labkit.recording.notebooks $(ARGS)

images: $(STAMP) ## draw the charts of images/ again, from the recorded runs
	@$(IN_VENV) $(BIN)/python -m labkit.images --out images
	@$(IN_VENV) $(BIN)/python -m labkit.screens --out images

slides: $(STAMP) ## make slides of part 1, or of ARGS="FILE …", into build/slides/
	@$(IN_VENV) $(BIN)/python -m labkit.recording.slides $(ARGS)

site: $(SITE_STAMP) ## build the course as web pages into build/site/, and check their links
	@$(IN_VENV) $(BIN)/python -m labkit.site

# One that is installed need not work: Docker's client alone builds nothing. The others keep the health check and the
# shell that the Dockerfile asks for only in Docker's format.
container: ## build the container image: with docker, podman or buildah, or ENGINE=
	@engine="$(ENGINE)"; for one in docker podman buildah; do \
	  if [ -n "$$engine" ]; then break; \
	  elif ! command -v $$one >/dev/null; then why="$$why$$one is not on PATH, "; \
	  elif $$one info >/dev/null 2>&1; then engine=$$one; \
	  else why="$$why$$one does not answer ($$one info says why), "; fi; done; \
	if [ -z "$$engine" ]; then \
	  echo "Nothing to build with: $${why%, }. Install one, start its service, or name yours: ENGINE=nerdctl" >&2; exit 2; fi; \
	case "$$engine" in *podman*|*buildah*) format='--format docker';; *) format=;; esac; set -x; \
	$$engine build $$format -t $(IMAGE) $(ARGS) .

clean: ## remove .venv, caches and your own reports; reports/recorded/ stays
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build source_code/*.egg-info
	@find . -name .git -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
	@if [ -d reports ]; then \
	  find reports -mindepth 1 -maxdepth 1 ! -name recorded ! -name README.md -exec rm -rf {} +; fi

# Below: how .venv is made.

# One at a time: a second make waits for the first one, and then finds everything installed. Without flock (macOS) it
# says so and ends.
define ONE_AT_A_TIME
@if command -v flock >/dev/null; then exec 9<Makefile; \
  flock -n 9 || { echo 'Another make installs into $(VENV): waiting for its end …'; flock 9; }; \
elif kill -0 "$$(cat $(UNFINISHED) 2>/dev/null)" 2>/dev/null; then \
  echo 'Another make (process '"$$(cat $(UNFINISHED))"') installs into $(VENV): wait for its end' >&2; exit 2; fi; \
$(MAKE) --no-print-directory HELD=1 $@
endef

define USABLE_PYTHON
@[ "$$(pwd -P | grep -c '')" = 1 ] || { \
  echo 'This folder has a line break in its name, and Python would not find the course in it: rename it' >&2; exit 2; }
@if ! command -v "$(PYTHON)" >/dev/null; then \
  echo '$(PYTHON) is not on PATH: install Python 3.10 or newer, or name yours: make $(1) PYTHON=python3.12' >&2; \
  exit 2; fi
@"$(PYTHON)" -c '' 2>/dev/null || { \
  echo "$(PYTHON) is on PATH and does not run ($$("$(PYTHON)" -c '' 2>&1 | grep -m1 .)):" \
    'name another one, for example make $(1) PYTHON=python3.12' >&2; exit 2; }
@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
  echo "$(PYTHON) is Python $$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])')," \
    'and the course needs 3.10 or newer: name a newer one, for example make $(1) PYTHON=python3.12' >&2; exit 2; }
@"$(PYTHON)" -c 'import venv, $(if $(SYSTEM_PACKAGES),pip,ensurepip)' 2>/dev/null || \
 "$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
  echo '$(PYTHON) cannot make virtual environments: on Debian and Ubuntu, apt-get install python3-venv' >&2; exit 2; }
endef

# A finished or hand-made environment is kept, and pip brings it up to date. One that was moved, whose first
# installation was interrupted, or whose Python or pip no longer runs is made anew.
define ENVIRONMENT
$(call USABLE_PYTHON,$(1))
@moved() { [ -e "$$1" ] && [ "$$(cat "$$1")" != "$(HERE)" ]; }; \
if [ -e $(UNFINISHED) ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1 \
    || moved $(STAMP) || moved $(READ_STAMP) \
    || { [ -n "$(VENV_FLAGS)" ] && ! grep -q 'packages = true' $(VENV)/pyvenv.cfg; }; then \
  echo 'Making $(VENV) …'; \
  "$(PYTHON)" -m venv --clear --without-pip $(VENV_FLAGS) $(VENV) && echo $$PPID >$(UNFINISHED) || exit 2; \
  $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --default-pip >/dev/null || exit 2; fi
endef

# The versions that were tested together on this Python, where labkit.versions says that they fit; else the newest that
# pyproject.toml allows. In pip's environment rather than on its command line they hold for what builds the package, too.
define INSTALL
$(if $(FLOAT),@touch $(VENV)/.floats)
@tested="$$(PYTHONPATH="source_code$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/python -m labkit.versions)" || exit 2; \
[ -z "$$tested" ] || export PIP_CONSTRAINT="$$tested" PIP_BUILD_CONSTRAINT="$$tested"; \
$(BIN)/python -m pip --disable-pip-version-check install $(1)
endef

define KERNEL
@$(BIN)/python -m ipykernel install --sys-prefix >/dev/null
@rm -f $(UNFINISHED)
@pwd -P > $@
endef

VERSIONS := $(wildcard source_code/labkit/versions/*.txt)

ifndef HELD

$(STAMP) $(READ_STAMP): pyproject.toml $(VERSIONS)
	$(ONE_AT_A_TIME)

$(DEV_STAMP): $(STAMP)
	$(ONE_AT_A_TIME)

$(SITE_STAMP): $(READY)
	$(ONE_AT_A_TIME)

else

$(STAMP): pyproject.toml $(VERSIONS)
	$(call ENVIRONMENT,lab)
	@echo 'Installing the course: some minutes and up to 6 GB the first time, most of it PyTorch …'
	$(call INSTALL,-e '.[course]')
	$(KERNEL)

# Bytecode is made as it is needed: a quarter less to write.
$(READ_STAMP): pyproject.toml $(VERSIONS)
	$(call ENVIRONMENT,read)
	@echo 'Installing what reading needs, without PyTorch: under a minute and 600 MB the first time …'
	$(call INSTALL,--no-compile -e '.[read]')
	$(KERNEL)

$(DEV_STAMP): $(STAMP)
	$(call INSTALL,-e '.[dev]')
	@touch $(DEV_STAMP)

$(SITE_STAMP): $(READY)
	$(call INSTALL,-e '.[site]')
	@touch $(SITE_STAMP)

endif
