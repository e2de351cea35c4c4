# The course in two containers: one with NVIDIA's PyTorch, which brings torch and Nsight Systems; and, as --target read,
# one to read with, without PyTorch and a fraction of its size. labs/running.md says how to run them.
#
# Any Debian or Ubuntu image with Python 3.10 or newer will do as a base of either.
ARG BASE_IMAGE=nvcr.io/nvidia/pytorch:25.10-py3
ARG READ_IMAGE=python:3.13-slim

FROM ${READ_IMAGE} AS read

# For a mirror or a wheel folder of your own, for example --build-arg PIP_ARGS="--index-url https://…".
ARG PIP_ARGS=""

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# A base without pip gets Debian's or Ubuntu's. Their versions follow the base, so they are not pinned.
# hadolint ignore=DL3008
RUN python3 -m pip --version || { \
        apt-get update \
        && apt-get install -y --no-install-recommends python3 python3-pip \
        && rm -rf /var/lib/apt/lists/*; \
    }

# Straight into the base's Python. Debian and Ubuntu refuse that outside a container, and so want to be told.
ENV LAB_MODE=recorded \
    PIP_BREAK_SYSTEM_PACKAGES=1 \
    PIP_ROOT_USER_ACTION=ignore

# First what the course needs, so that a changed notebook does not install it again.
WORKDIR /course
COPY pyproject.toml LICENSE ./
COPY source_code/stepbudget/__init__.py source_code/stepbudget/README.md source_code/stepbudget/
# Ranges, not versions: PIP_ARGS may be several words. Bytecode is made as it is needed: a quarter less to fetch.
# hadolint ignore=DL3013,SC2086
RUN python3 -m pip install --no-cache-dir --no-compile ${PIP_ARGS} -e '.[read]'

# Not root, and by number, so that a cluster can see that it is not.
RUN useradd --uid 10001 --user-group --create-home --shell /bin/bash learner \
    && mkdir -p reports \
    && chown -R 10001:10001 /course
COPY --chown=10001:10001 . ./

USER 10001
EXPOSE 8888

# Jupyter makes a token at every start and prints the address with it. Publish the port on this machine only:
# docker run -p 127.0.0.1:8888:8888 …
HEALTHCHECK --start-period=30s --timeout=10s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8888/api', timeout=5)"]
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser", "--LabApp.default_url=/lab/tree/start_here.ipynb"]

# The same with PyTorch. NVIDIA's own is used, not downloaded again, and pip honours the versions of its image.
FROM ${BASE_IMAGE} AS course
ARG PIP_ARGS=""
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN python3 -m pip --version || { \
        apt-get update \
        && apt-get install -y --no-install-recommends python3 python3-pip \
        && rm -rf /var/lib/apt/lists/*; \
    }
ENV PIP_BREAK_SYSTEM_PACKAGES=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /course
COPY pyproject.toml LICENSE ./
COPY source_code/stepbudget/__init__.py source_code/stepbudget/README.md source_code/stepbudget/
# hadolint ignore=DL3013,SC2086
RUN python3 -m pip install --no-cache-dir ${PIP_ARGS} -e '.[course]'
RUN useradd --uid 10001 --user-group --create-home --shell /bin/bash learner \
    && mkdir -p reports \
    && chown -R 10001:10001 /course
COPY --chown=10001:10001 . ./
USER 10001
EXPOSE 8888
HEALTHCHECK --start-period=30s --timeout=10s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8888/api', timeout=5)"]
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser", "--LabApp.default_url=/lab/tree/start_here.ipynb"]
