"""Writes a folder with which a bare machine checks roll on its GPUs without a network: `python tools/gpu_bundle.py`.

The machine has Python, torch with CUDA, transformers, peft and pytest, as an image for machine learning has; the folder
(under 60 MiB) brings the rest: wheels, Ray without the parts that a run does not use, and the files of this commit.
There: `bash gpu_bundle/run.sh --minutes 10`, with the arguments of `python -m tests.gpu`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LOCK = REPOSITORY / "requirements" / "cuda-vllm.txt"
MOST_BYTES = 60 << 20
CARRIED = (
    "annotated-types",
    "antlr4-python3-runtime",
    "cloudpickle",
    "deepspeed",
    "hjson",
    "hydra-core",
    "jsonschema",
    "jsonschema-specifications",
    "latex2sympy2-extended",
    "math-verify",
    "megatron-core",
    "omegaconf",
    "py-cpuinfo",
    "pydantic",
    "pydantic-core",
    "ray",
    "referencing",
    "rpds-py",
    "typing-inspection",
)
"""What images with torch and transformers lack. All of it is pure Python, or has wheels for Linux."""
WITHOUT_WHEELS = ("antlr4-python3-runtime", "deepspeed")
"""Pure Python, and on the index as sources only: their wheels are made here."""
LEFT_OUT = tuple(
    f"ray/{part}/"
    for part in ("dashboard/client", "data", "jars", "llm", "rllib", "serve", "train", "tune", "air", "cpp")
)
"""Of Ray: its Java, its web page, and the libraries beside its core."""
RUN = """\
#!/usr/bin/env bash
# Checks roll on the GPUs of this machine, without a network. Arguments: those of `python -m tests.gpu`; report.tar.gz
# is written to REPORT_DIR, or beside this file. After LIMIT_S seconds, if given, what still runs is ended.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
work=$(mktemp -d /tmp/roll-gpu-XXXXXX)
mkdir "$work/site" "$work/roll"
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$work/site" wheels/*.whl
tar -xzf roll.tar.gz -C "$work/roll"
report=$(realpath "${REPORT_DIR:-$PWD}")
cd "$work/roll"
export PYTHONPATH="$work/site"
status=0
timeout -s INT "${LIMIT_S:-0}" python3 -m tests.gpu --out "$work/gpu_report" "$@" || status=$?
mkdir -p docs/gpu_reports "$work/gpu_report"
tar -czf "$report/report.tar.gz" --exclude=*.safetensors --exclude=checkpoint --exclude=data \\
    -C "$work" gpu_report roll/docs/gpu_reports roll/docs/gpu_validation.md
echo "the report: $report/report.tar.gz"
exit $status
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if the folder is written; 2, with the reason, if it is too large or a package cannot be had."""
    options = _parser().parse_args(arguments)
    out: Path = options.out
    if out.exists() and not (out / "run.sh").exists() and any(out.iterdir()):
        print(f"--out: {out} holds other files. Give a new folder", file=sys.stderr)
        return 2
    shutil.rmtree(out, ignore_errors=True)
    wheels = out / "wheels"
    wheels.mkdir(parents=True)
    versions = _versions(LOCK.read_text())
    try:
        for name in CARRIED:
            _fetch(f"{name}=={versions[name]}", wheels, options.python, options.pip_args.split())
        _archive(out / "roll.tar.gz")
    except subprocess.CalledProcessError as error:
        print(f"{' '.join(map(str, error.cmd))}: {error.stderr.strip()}", file=sys.stderr)
        return 2
    for ray in wheels.glob("ray-*.whl"):
        _shorten(ray)
    (out / "run.sh").write_text(RUN)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size / 2**20:.1f} MiB. On the machine: bash {out.name}/run.sh --minutes 10")
    if size > MOST_BYTES:
        print(f"that is more than {MOST_BYTES >> 20} MiB", file=sys.stderr)
        return 2
    return 0


def _versions(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\n]+)", lock, re.MULTILINE))


def _fetch(requirement: str, wheels: Path, python: str, pip_args: list[str]) -> None:
    pip = [sys.executable, "-m", "pip"]
    if requirement.split("==")[0] in WITHOUT_WHEELS:
        command = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", *pip_args, "-w", str(wheels), requirement]
    else:
        forms = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17)] + ["manylinux2014_x86_64", "any"]
        command = [*pip, "download", "-q", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
        command += ["--python-version", python, *(f"--platform={form}" for form in forms), *pip_args]
        command += ["-d", str(wheels), requirement]
    subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | {"DS_BUILD_OPS": "0"})


def _archive(path: Path) -> None:
    """The files of this commit. Documentation comes with it: the report is written there."""
    command = ["git", "archive", "--format=tar.gz", "-o", str(path), "HEAD"]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)


def _shorten(wheel: Path) -> None:
    """Takes LEFT_OUT out of a wheel of Ray, out of its list of files too."""
    with tempfile.TemporaryDirectory(dir=wheel.parent) as directory:
        shorter = Path(directory) / wheel.name
        with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(shorter, "w", zipfile.ZIP_DEFLATED, True, 9) as target:
            for entry in source.infolist():
                if entry.filename.startswith(LEFT_OUT):
                    continue
                content = source.read(entry)
                if entry.filename.endswith(".dist-info/RECORD"):
                    lines = content.decode().splitlines(keepends=True)
                    content = "".join(line for line in lines if not line.startswith(LEFT_OUT)).encode()
                target.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)
        shorter.replace(wheel)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python tools/gpu_bundle.py", description=__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "output" / "gpu_bundle", help="replaced")
    parser.add_argument("--python", default="3.12", help="the machine's Python (3.12)")
    parser.add_argument("--pip_args", default="", help="more arguments for pip: an index, a proxy")
    return parser


if __name__ == "__main__":
    sys.exit(main())
