# CPUs: deepspeed_train and hf_infer, what `make demo` has. From the root of a checkout:
#   docker build -f examples/launch/docker/cpu.Dockerfile -t roll:cpu .
FROM python:3.12-slim-bookworm

# tini takes the place of process 1: it hands SIGTERM on, and buries what workers leave.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*

# Packages are a layer of their own: a change of the code does not install them again. They are compiled here, since the
# user of the run cannot write beside them.
WORKDIR /opt/roll
COPY requirements/cpu-demo.txt requirements/
RUN pip install --no-cache-dir --no-deps --extra-index-url https://download.pytorch.org/whl/cpu \
    -r requirements/cpu-demo.txt

# What is named comes along and nothing else: no .env, no outputs, no .git.
COPY setup.py pyproject.toml README.md LICENSE ./
COPY roll roll
COPY examples examples
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e . \
    && python -m compileall -q roll \
    && useradd --create-home --uid 1001 roll

USER 1001
WORKDIR /home/roll
ENV OMP_NUM_THREADS=1
ENTRYPOINT ["tini", "--"]
CMD ["roll", "--help"]
