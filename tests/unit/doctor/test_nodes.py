"""`roll doctor` where RAY_ADDRESS names a cluster: what tells its nodes apart."""

from __future__ import annotations

from pathlib import Path

from roll.distributed.executor.processes.node_facts import NodeFacts
from roll.doctor.machine import PACKAGES, node_findings

SAME = ("3.12.1", *("1.0" for _ in PACKAGES))
HERE = Path("/shared")


def test_nodes_that_are_alike_are_one_line() -> None:
    nodes = [NodeFacts(f"10.0.0.{n}", SAME, 0.002, 0.003, sees=True) for n in (1, 2)]
    (found,) = node_findings(nodes, HERE)
    assert (found.level, found.what) == ("ok", "2 nodes answer: 10.0.0.1, 10.0.0.2; all see /shared")


def test_other_versions_clocks_and_folders_are_told_by_node() -> None:
    other = ("3.12.1", "2.0", "", *SAME[3:])
    nodes = [
        NodeFacts("10.0.0.1", SAME, 0.0, 0.01, sees=True),
        NodeFacts("10.0.0.2", other, -7.25, 0.01, sees=False),
        NodeFacts("10.0.0.3", failure="ModuleNotFoundError: No module named 'roll'"),
    ]
    found = list(node_findings(nodes, HERE))
    assert [finding.level for finding in found] == ["problem", "problem", "hint", "problem", "ok"]
    assert found[0].what == "node 10.0.0.3 does not reply: ModuleNotFoundError: No module named 'roll'"
    assert found[1].what == "node 10.0.0.2 differs from 10.0.0.1: torch 2.0 (there 1.0), ray missing (there 1.0)"
    assert found[2].what == "node 10.0.0.2: its clock is -7.2 s from the one here"
    assert found[3].what.startswith("node 10.0.0.2 does not see /shared") and found[3].where == "output_dir"
    assert found[4].what == "2 nodes answer: 10.0.0.1, 10.0.0.2"
