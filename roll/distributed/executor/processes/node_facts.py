"""Facts that the nodes of a running Ray cluster report, each by a small task."""

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from roll.distributed.executor.processes.launch import RayRuntime
from roll.errors import describe

_TIMEOUT_S = 60


@dataclass(frozen=True)
class NodeFacts:
    """`versions`: in the order asked, "" where one is not installed. `ahead_s`: of the node's clock before ours, known
    to `within_s`. `sees`: the file that was asked for is there. `failure`: why there is nothing else."""

    address: str
    versions: tuple[str, ...] = ()
    ahead_s: float = 0.0
    within_s: float = 0.0
    sees: bool = False
    failure: str = ""


def node_facts(packages: Sequence[str], file: Path | None) -> list[NodeFacts]:
    """Facts about each living node of the cluster at RAY_ADDRESS. Raises ResourceError if there is none."""
    runtime = RayRuntime()
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        return [_query(node, packages, file) for node in sorted(nodes, key=lambda node: node["NodeManagerAddress"])]
    finally:
        runtime.shutdown()


def _query(node: dict[str, Any], packages: Sequence[str], file: Path | None) -> NodeFacts:
    """Twice, since the first call waits for a process to start: the clock is that of the second."""
    address = node["NodeManagerAddress"]
    place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task = ray.remote(_read_facts).options(num_cpus=0, scheduling_strategy=place)
    try:
        ray.get(task.remote(packages, file), timeout=_TIMEOUT_S)
        before = time.time()
        versions, now, sees = ray.get(task.remote(packages, file), timeout=_TIMEOUT_S)
        after = time.time()
    except RayError as error:
        return NodeFacts(address, failure=describe(error).splitlines()[0])
    return NodeFacts(address, versions, now - (before + after) / 2, (after - before) / 2, sees)


def _read_facts(packages: Sequence[str], file: Path | None) -> tuple[tuple[str, ...], float, bool]:
    return (platform.python_version(), *map(_version, packages)), time.time(), file is not None and file.exists()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def own_address() -> str:
    return ray.util.get_node_ip_address()
