"""Writes a folder with which a bare machine checks roll on its GPUs without a network: `python tools/gpu_bundle.py`.

The machine has Python with pip, torch with CUDA, transformers and peft, as images for machine learning have them. The
folder (under 60 MiB) brings the rest: wheels, Ray without the parts that a run does not use, and the files of this
commit. There: `bash gpu_bundle/run.sh --minutes 10`, with the arguments of `python -m tests.gpu`.
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
MOST_MIB = 60
_WRITTEN = {"wheels", "roll.tar.gz", "run.sh"}
CARRIED = (
    "annotated-types",
    "antlr4-python3-runtime",
    "attrs",
    "charset-normalizer",
    "cloudpickle",
    "deepspeed",
    "einops",
    "hjson",
    "hydra-core",
    "jsonschema",
    "jsonschema-specifications",
    "latex2sympy2-extended",
    "math-verify",
    "megatron-core",
    "msgpack",
    "ninja",
    "omegaconf",
    "protobuf",
    "py-cpuinfo",
    "pydantic",
    "pydantic-core",
    "ray",
    "referencing",
    "requests",
    "rpds-py",
    "typing-inspection",
    "urllib3",
    "xxhash",
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
# Checks roll on the GPUs of this machine, without a network. Arguments: those of `python -m tests.gpu`, but --out and
# --reports. A packed report is written to REPORT_DIR, or beside this file. After LIMIT_S seconds, if given, what still
# runs is ended. Exit code 2 if nothing could run.
set -euo pipefail
fail() { echo "$1" >&2; exit 2; }
for word in "$@"; do
    case $word in --out*|--reports*) fail "${word%%=*}: the report goes to REPORT_DIR, or beside this file" ;; esac
done
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
reports=${REPORT_DIR:-$here}
mkdir -p "$reports" 2>/dev/null && [ -w "$reports" ] || fail "REPORT_DIR: $reports cannot be written to"
reports=$(cd "$reports" && pwd)
python3 -m pip --version >/dev/null 2>&1 || fail "python3 has no pip, which unpacks the wheels"
work=$(mktemp -d /tmp/roll-gpu-XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir "$work/site" "$work/roll"
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$work/site" "$here"/wheels/*.whl
tar -xzf "$here/roll.tar.gz" -C "$work/roll"
cd "$work/roll"
export PYTHONPATH="$work/site"
status=0
trap : INT  # Ctrl-C ends the checks; what they found is packed all the same
timeout --foreground -s INT "${LIMIT_S:-0}" python3 -m tests.gpu --out "$work/gpu_report" "$@" || status=$?
[ -f "$work/gpu_report/report.json" ] || exit $status
number=1
while [ -e "$reports/report-$number.tar.gz" ]; do number=$((number + 1)); done
tar -czf "$reports/report-$number.tar.gz" --exclude='*.safetensors' --exclude=checkpoint --exclude=data \\
    -C "$work" gpu_report roll/reports/gpu roll/reports/gpu.md
echo "the report: $reports/report-$number.tar.gz"
exit $status
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if the folder is written; 2, with the reason, if it is too large or a package cannot be had."""
    options = _parser().parse_args(arguments)
    out: Path = options.out.resolve()
    if why_not := _why_not_replaced(out):
        print(f"--out: {why_not}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix=".gpu_bundle-", dir=out.parent) as directory:
        made = Path(directory) / "made"
        if why_not := _write(made, options.python, options.pip_args.split()):
            print(why_not, file=sys.stderr)
            return 2
        shutil.rmtree(out, ignore_errors=True)
        made.rename(out)
    print(f"{out}: {_size(out):.1f} MiB. On the machine: bash {out.name}/run.sh --minutes 10")
    return 0


def _why_not_replaced(out: Path) -> str:
    """Why a folder is not this program's to write; empty if it is."""
    if out.exists() and not out.is_dir():
        return f"{out} is no folder"
    if others := sorted({entry.name for entry in out.iterdir()} - _WRITTEN) if out.exists() else []:
        return f"{out} holds {others[0]}, which is not part of a bundle. Give a new folder"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return str(error)
    return "" if os.access(out.parent, os.W_OK) else f"{out.parent} is read-only"


def _write(out: Path, python: str, pip_args: list[str]) -> str:
    """Why it cannot be written; empty if it is there."""
    wheels = out / "wheels"
    wheels.mkdir(parents=True)
    versions = _versions(LOCK.read_text())
    try:
        for name in CARRIED:
            _fetch(f"{name}=={versions[name]}", wheels, python, pip_args)
        _archive(out / "roll.tar.gz")
    except subprocess.CalledProcessError as error:
        return f"{' '.join(map(str, error.cmd))}: {error.stderr.strip()}"
    for ray in wheels.glob("ray-*.whl"):
        _shorten(ray)
    (out / "run.sh").write_text(RUN)
    return f"it has {_size(out):.1f} MiB, more than {MOST_MIB}" if _size(out) > MOST_MIB else ""


def _size(folder: Path) -> float:
    """In MiB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


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
