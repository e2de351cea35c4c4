# The course in NVIDIA's PyTorch container, which brings torch and Nsight Systems. README.md says how to run it.
#
# Any Debian or Ubuntu image with Python 3.10 or newer will do as a base, for example to read the labs without a GPU:
#   docker build -t gpu-performance-lab --build-arg BASE_IMAGE=python:3.12-slim .
ARG BASE_IMAGE=nvcr.io/nvidia/pytorch:25.10-py3
FROM ${BASE_IMAGE}

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

# Straight into the base's Python, as in NVIDIA's own images: its torch is used, not downloaded again, and pip honours the
# base's constraints. Debian and Ubuntu refuse that outside a container, and so want to be told.
ENV PIP_BREAK_SYSTEM_PACKAGES=1 \
    PIP_ROOT_USER_ACTION=ignore

# First what the course needs, so that a changed notebook does not install it again.
WORKDIR /course
COPY pyproject.toml LICENSE ./
COPY source_code/stepbudget/__init__.py source_code/stepbudget/README.md source_code/stepbudget/
# Ranges, not versions: the base has its own, which pip honours. PIP_ARGS may be several words.
# hadolint ignore=DL3013,SC2086
RUN python3 -m pip install --no-cache-dir ${PIP_ARGS} -e '.[course]'

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
