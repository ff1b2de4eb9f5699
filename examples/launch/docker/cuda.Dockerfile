# GPUs, with one engine: ENGINE is vllm or sglang. The host's NVIDIA driver must be 580 or newer. From the root of a
# checkout:
#   docker build -f examples/launch/docker/cuda.Dockerfile --build-arg ENGINE=vllm -t roll:cuda-vllm .
#   docker build -f examples/launch/docker/cuda.Dockerfile --build-arg ENGINE=sglang -t roll:cuda-sglang .
# With the compiler of CUDA: DeepSpeed and the engines compile kernels when they first run.
ARG CUDA=13.0.2
FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04
ARG ENGINE=vllm

# tini takes the place of process 1: it hands SIGTERM on, and buries what workers leave.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential python3-dev python3-venv tini wget \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:${PATH}

# Packages are a layer of their own: a change of the code does not install them again. They are compiled here, since the
# user of the run cannot write beside them.
WORKDIR /opt/roll
COPY requirements/cuda-${ENGINE}.txt requirements/
RUN pip install --no-cache-dir --no-deps -r requirements/cuda-${ENGINE}.txt

# What is named comes along and nothing else: no .env, no outputs, no .git.
COPY setup.py pyproject.toml README.md LICENSE ./
COPY roll roll
COPY examples examples
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e . \
    && python -m compileall -q roll \
    && useradd --create-home --uid 1001 roll

USER 1001
WORKDIR /home/roll
ENTRYPOINT ["tini", "--"]
CMD ["roll", "--help"]
