"""Speeds of the devices of a run: what they compute, read and send, from gpus.yaml or a probe of this machine."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import yaml

from roll.configs.memory.flops import Gpu
from roll.run.start.machine import this_machine
from roll.utils.files import write_whole

logger = logging.getLogger(__name__)

CACHE = "~/.cache/roll/machines"
_PROBE = Path(__file__).with_name("probe.py")
_TIMEOUT_S = 120
_ROWS = (1, 8, 64, 512)  # as the probe measures them


@cache
def shares() -> Mapping[str, Mapping[str, float]]:
    """Shares of a device's peaks that roll reaches, by platform: shares.yaml, which says from where."""
    return yaml.safe_load(Path(__file__).with_name("shares.yaml").read_text(encoding="utf-8"))


class Devices(Protocol):
    """One worker's devices. `dtype_bytes`: of a weight."""

    @property
    def shares(self) -> Mapping[str, float]: ...

    def pass_s(self, kind: str, flops: float, weight_bytes: float, rows: float, dtype_bytes: int) -> float:
        """Seconds of products with weights, of so many rows at once. `kind`: "train", "score" or "decode"."""
        ...

    def read_s(self, num_bytes: float) -> float: ...

    def copy_s(self, num_bytes: float, to_host: bool = False) -> float: ...


@dataclass(frozen=True)
class Gpus:
    """`count` GPUs that divide a model among them."""

    gpu: Gpu
    count: int = 1

    @property
    def shares(self) -> Mapping[str, float]:
        return shares()["gpu"]

    def pass_s(self, kind: str, flops: float, weight_bytes: float, rows: float, dtype_bytes: int) -> float:
        peak = self.gpu.tflops * 1e12 * (1 if dtype_bytes == 2 else 0.5)  # TF32 has half the rate
        divided = self.count * (self.shares["divided"] if self.count > 1 else 1)
        return flops / (peak * self.shares[kind] * divided) + self.read_s(weight_bytes)

    def read_s(self, num_bytes: float) -> float:
        return num_bytes / (self.gpu.bandwidth * 1e9 * self.shares["read"] * self.count)

    def copy_s(self, num_bytes: float, to_host: bool = False) -> float:
        rate = self.shares["host_gb_per_s"] if to_host else self.gpu.link / 2 * self.shares["link"]
        return num_bytes / (rate * 1e9)


@dataclass(frozen=True)
class Cpus:
    """The cores of a worker: `threads` of them, of which it has `share` for itself."""

    probe: Mapping[str, Any]
    threads: int
    cores: int
    share: float = 1.0

    @property
    def shares(self) -> Mapping[str, float]:
        return shares()["cpu"]

    def pass_s(self, kind: str, flops: float, weight_bytes: float, rows: float, dtype_bytes: int) -> float:
        dtype = "fp32" if dtype_bytes == 4 else "bf16"
        rate = self._rate(rows, dtype) * self.shares.get(f"{kind}_{dtype}", self.shares[kind])
        if kind == "train":  # attention, and the products backward, which are slower in bf16
            rate *= self.probe["layer_flops"][dtype] / self.probe["flops"]["1"][dtype][-1]
        return flops / (rate * self.share)

    def read_s(self, num_bytes: float) -> float:
        return num_bytes / self.probe["copy_bytes_per_s"]

    def copy_s(self, num_bytes: float, to_host: bool = False) -> float:
        return 0.0 if to_host else 2 * num_bytes / self.probe["copy_bytes_per_s"]

    def _rate(self, rows: float, dtype: str) -> float:
        """FLOP/s of products of so many rows: straight between what the probe measured, by logarithms."""
        alone, together = (self._curve(threads, dtype, rows) for threads in (1, self.cores))
        if self.threads == 1 or self.cores == 1:
            return alone
        return alone + max(0.0, together - alone) * (self.threads - 1) / (self.cores - 1)

    def _curve(self, threads: int, dtype: str, rows: float) -> float:
        points = [math.log(rate) for rate in self.probe["flops"][str(threads)][dtype]]
        at = min(max(math.log(rows, 8), 0.0), len(points) - 1.0)
        low = min(int(at), len(points) - 2)
        return math.exp(points[low] + (points[low + 1] - points[low]) * (at - low))


@cache
def probe_of_cpus() -> Mapping[str, Any] | None:
    """Speeds of the CPUs of this machine: measured once by a program of its own, and kept in the user's cache."""
    cores = this_machine().num_cores
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    models = sorted({line for line in text.splitlines() if line.startswith(("model name", "flags"))})
    key = hashlib.sha256(repr((models, cores, _PROBE.read_text(encoding="utf-8"))).encode()).hexdigest()[:16]
    file = Path(CACHE).expanduser() / f"{key}.json"
    with suppress(OSError, ValueError):
        return json.loads(file.read_text(encoding="utf-8"))
    logger.warning("measuring what the CPUs of this machine compute, once, for the forecast (some seconds)")
    command = [sys.executable, str(_PROBE), str(cores)]
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": str(cores),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment, check=True)
        probe = {**json.loads(done.stdout), "cores": cores, "key": key}
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(probe))
    return probe
