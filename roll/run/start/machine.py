"""This machine, as defaults and checks depend on it. Nothing is imported, and no GPU is opened."""

import os
import shutil
import subprocess
from dataclasses import replace
from functools import cache

from roll.configs.load.chosen_values import Machine
from roll.configs.sections.run import RunConfig
from roll.platforms.table import CUDA, NPU, ROCM, Platform, machine_platform
from roll.utils.imports import is_installed

THREADS = "OMP_NUM_THREADS"
PACKAGES = ("vllm", "sglang", "deepspeed")


def this_machine() -> Machine:
    platform = machine_platform()
    shown_by = platform if platform in (ROCM, NPU) else CUDA
    machine = _machine(shown_by, os.environ.get(shown_by.visible_variable), os.environ.get("PATH"))
    cores, limit = len(os.sched_getaffinity(0)), os.environ.get(THREADS, "")
    return replace(machine, num_cores=min(cores, int(limit)) if limit.isdecimal() and int(limit) else cores)


@cache
def _machine(platform: Platform, visible: str | None, path: str | None) -> Machine:
    """Return facts about this machine. `path`: the PATH on which nvidia-smi is found, part of the key of the cache."""
    packages = frozenset(name for name in PACKAGES if is_installed(name))
    if platform is not CUDA:
        return Machine(num_shown(visible, platform.num_devices()), None, packages, platform.name)
    count = num_visible_gpus(visible)
    return Machine(count, smallest_gpu_bytes() if count else None, packages)


def machine_of(config: RunConfig) -> Machine:
    """This machine as far as the run uses it: without its devices where the run is for those of another platform."""
    machine = this_machine()
    if config.platform in ("auto", machine.platform):
        return machine
    return replace(machine, num_gpus=0, gpu_bytes=None)


def lacks_gpus(config: RunConfig) -> bool:
    """Whether engines of the run compute on CPUs."""
    return config.platform in ("auto", "cpu") and not machine_of(config).num_gpus


# The GPUs of this machine, asked of the driver's own tool: it takes no memory on them, as a CUDA context would.

_MIB = 1 << 20
_TIMEOUT_S = 20


def smallest_gpu_bytes() -> float | None:
    """Memory of the smallest GPU; None without GPUs, or where nvidia-smi does not say."""
    sizes = _sizes()
    return min(map(int, sizes)) * _MIB if sizes and all(size.isdecimal() for size in sizes) else None


def num_visible_gpus(visible: str | None) -> int:
    """GPUs that a process sees whose CUDA_VISIBLE_DEVICES is `visible` (None: not set); 0 where there is no
    nvidia-smi."""
    return num_shown(visible, len(_sizes()))


def num_shown(visible: str | None, count: int) -> int:
    """The devices, of `count` on this machine, that a variable shows (None: it is not set)."""
    if visible is None or not count:
        return count
    names = [name.strip() for name in visible.split(",")]
    return next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))  # CUDA stops there


def _sizes() -> list[str]:
    """The memory of each GPU in MiB, as nvidia-smi writes it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.splitlines() if line.strip()]
