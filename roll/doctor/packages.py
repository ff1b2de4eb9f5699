"""Packages and their versions, held against what roll-rl asks for, and the GPUs of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from roll.doctor.machine import Finding
from roll.platforms.table import CUDA, NPU, ROCM, Platform, machine_platform
from roll.utils.imports import is_installed

DISTRIBUTION = "roll-rl"
_CUDA = re.compile(r"^cuda\b[^=]*= *'([\d.]+)'", re.MULTILINE)


def package_findings() -> Iterator[Finding]:
    try:
        requirements = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        yield Finding("hint", f"{DISTRIBUTION} is not installed, so versions are not compared", fix="pip install -e .")
        return
    versions = ((each.metadata["Name"] or "", each.version) for each in distributions())
    here: dict[str, str] = {canonicalize_name(name): version.partition("+")[0] for name, version in versions}
    yield from metadata_findings(map(Requirement, requirements), here)


def metadata_findings(requirements: Iterable[Requirement], here: Mapping[str, str]) -> Iterator[Finding]:
    """Yield packages that are missing or out of range: a problem if every run needs them, a hint if an extra does."""
    wrong = 0
    for requirement in requirements:
        marker, name = requirement.marker, canonicalize_name(requirement.name)
        is_core = marker is None or marker.evaluate({"extra": ""})
        current = here.get(name)
        if (current is None and not is_core) or (current is not None and current in requirement.specifier):
            continue
        wrong += 1
        what = f"{name} is not installed" if current is None else f"{name} is {current}"
        fix = f"pip install '{name}{requirement.specifier}'"
        yield Finding("problem" if is_core else "hint", f"{what}, and {requirement.specifier} is needed", fix=fix)
    if not wrong:
        yield Finding("ok", f"packages match the requirements of {DISTRIBUTION} {version(DISTRIBUTION)}")


@dataclass(frozen=True)
class TorchBuild:
    """`cuda`: its version, such as 13.0; empty for a build without."""

    version: str
    cuda: str


def torch_build() -> TorchBuild | None:
    """Read torch's build from its files, without importing it."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    match = _CUDA.search((Path(spec.origin).parent / "version.py").read_text(encoding="utf-8"))
    return TorchBuild(version("torch"), match[1] if match else "")


def torch_findings() -> Iterator[Finding]:
    build = torch_build()
    if build is None:
        fix = "pip install torch, from https://download.pytorch.org/whl/cpu without GPUs (docs/install.md)"
        yield Finding("problem", "torch is not installed", fix=fix)
    else:
        yield Finding(
            "ok", f"torch {build.version}, {f'built for CUDA {build.cuda}' if build.cuda else 'without CUDA'}"
        )


# The GPUs of this machine as the driver's own tool tells of them, held against torch's build.

_TIMEOUT_S = 20
_QUERY = "index,name,memory.total,memory.used,driver_version"
_BUSY = 0.05  # of a GPU's memory; what the driver and a display hold is less
_LEAST_DRIVER: Mapping[int, int] = {11: 450, 12: 525, 13: 580}
"""The first driver of each CUDA version, as NVIDIA's table of compatibility has it."""


@dataclass(frozen=True)
class Gpu:
    index: str
    name: str
    total_mib: int
    used_mib: int
    driver: str


def gpu_findings() -> Iterator[Finding]:
    tool = shutil.which("nvidia-smi")
    build, platform = torch_build(), machine_platform()
    if platform in (ROCM, NPU):
        yield from other_devices(platform, os.environ.get(platform.visible_variable))
        return
    if tool is None:
        yield from without_gpus(build)
        return
    command = [tool, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except subprocess.CalledProcessError as error:
        said = " ".join(f"{error.stdout} {error.stderr}".split())
        fix = "Repair the driver (reboot after an update of it); in a container pass --gpus all"
        yield Finding("problem", f"nvidia-smi ends with {error.returncode}: {said}", "nvidia-smi", fix)
        return
    except subprocess.TimeoutExpired:
        what = f"nvidia-smi does not reply within {_TIMEOUT_S} s: a GPU hangs"
        yield Finding("problem", what, "nvidia-smi", "`dmesg | grep -i xid` says which; reboot")
        return
    yield from driver_facts(parsed(done.stdout), build, os.environ.get(CUDA.visible_variable))


def other_devices(platform: Platform, visible: str | None) -> Iterator[Finding]:
    """Devices of a platform that is not NVIDIA's. `visible`: the variable that shows them."""
    yield Finding("ok", f"{platform.num_devices()} {platform.devices} of the platform {platform.name}")
    yield Finding("hint", f"roll has never run on {platform.devices} of {platform.name}", "platform")
    yield from _narrowed(platform, visible)
    if platform is NPU and not is_installed("torch_npu"):
        fix = "Install the torch_npu that is built for this torch (docs/platforms.md)"
        yield Finding("problem", "torch_npu is not installed: NPUs stay unused", fix=fix)


def _narrowed(platform: Platform, visible: str | None) -> Iterator[Finding]:
    name = platform.visible_variable
    if visible is not None:
        yield Finding("hint", f"{name} is {visible!r}: a run sees only these", name)


def without_gpus(build: TorchBuild | None) -> Iterator[Finding]:
    yield Finding("ok", "no GPUs: there is no nvidia-smi, so devices of a run are CPU slots")
    if build is not None and build.cuda:
        fix = "pip install torch --index-url https://download.pytorch.org/whl/cpu takes less room"
        yield Finding("hint", f"torch is built for CUDA {build.cuda}, which nothing here uses", fix=fix)


def parsed(text: str) -> list[Gpu]:
    """Rows of nvidia-smi's CSV. Of a GPU that shares the machine's memory it says [N/A]."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [Gpu(index, name, _mib(total), _mib(used), driver) for index, name, total, used, driver in rows]


def _mib(cell: str) -> int:
    return int(cell) if cell.isdigit() else 0


def driver_facts(gpus: list[Gpu], build: TorchBuild | None, visible: str | None) -> Iterator[Finding]:
    """`visible`: CUDA_VISIBLE_DEVICES."""
    if not gpus:
        yield Finding("problem", "nvidia-smi lists no GPU", "nvidia-smi", "In a container pass --gpus all")
        return
    kinds = {(gpu.name, gpu.total_mib) for gpu in gpus}
    named = ", ".join(f"{name} of {total / 1024:.0f} GiB" for name, total in sorted(kinds))
    yield Finding("ok", f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}: {named}; driver {gpus[0].driver}")
    if len(kinds) > 1:
        yield Finding("hint", "GPUs differ: the plan uses the smallest", "device_mapping")
    yield from _narrowed(CUDA, visible)
    for gpu in gpus:
        if gpu.used_mib > _BUSY * gpu.total_mib > 0:
            what = f"GPU {gpu.index}: {gpu.used_mib / 1024:.1f} of {gpu.total_mib / 1024:.0f} GiB are already in use"
            yield Finding("problem", what, "nvidia-smi", "End the processes that it lists, or leave this GPU out")
    if build is not None:
        yield from _torch_on(gpus, build)


def _torch_on(gpus: list[Gpu], build: TorchBuild) -> Iterator[Finding]:
    if not build.cuda:
        fix = "pip install --no-deps -r requirements/cuda-vllm.txt (docs/install.md)"
        yield Finding("problem", f"torch {build.version} is built without CUDA: GPUs stay unused", fix=fix)
        return
    major, driver = int(build.cuda.partition(".")[0]), gpus[0].driver
    least = _LEAST_DRIVER.get(major)
    if least is not None and driver.partition(".")[0].isdigit() and int(driver.partition(".")[0]) < least:
        what = f"the driver {driver} is too old for CUDA {build.cuda}, which torch {build.version} is built for"
        yield Finding("problem", what, fix=f"Install driver {least} or newer, or a torch built for an older CUDA")
