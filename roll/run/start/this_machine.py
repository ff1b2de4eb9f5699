"""This machine, as defaults depend on it. Nothing is imported, and no GPU is opened."""

from __future__ import annotations

import os
from functools import cache

from roll.configs.load.chosen import Machine
from roll.run.start.gpu_memory import num_visible_gpus, smallest_gpu_bytes
from roll.utils.imports import is_installed

PACKAGES = ("vllm", "sglang", "deepspeed")


def this_machine() -> Machine:
    return _machine(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("PATH"))


@cache
def _machine(visible: str | None, path: str | None) -> Machine:
    """`path` decides which nvidia-smi answers."""
    count = num_visible_gpus(visible)
    packages = frozenset(name for name in PACKAGES if is_installed(name))
    return Machine(count, smallest_gpu_bytes() if count else None, packages)
