"""Two laws whose numbers may only fall: the kernel imports no ring, and little of roll lies behind an entry.

`rings.json` says which files are the kernel and which are a ring around it (a feature, an engine, a tool); the longest
path that fits a file counts. A change that lowers a number lowers its bound here."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.layout.source import REPOSITORY, Module, modules

KERNEL = "kernel"
KERNEL_IMPORTS_OF_RINGS = 0
CLOSURES = {
    "a rank of fsdp2_train": (("roll.distributed.strategy.fsdp2.train",), 8_850),
    "a run of RLVR with fsdp2_train, vllm and math_rule": (
        (
            "roll.pipeline.rlvr.rlvr_pipeline",
            "roll.distributed.strategy.fsdp2.train",
            "roll.distributed.strategy.vllm.generate",
            "roll.rewards.math_rule",
            "roll.distributed.executor.clusters",
        ),
        36_400,
    ),
}
LINES_OF_A_PLAN = 16_200


@cache
def rings() -> dict[str, str]:
    """The ring of each path below roll/."""
    named = json.loads((REPOSITORY / "tests/layout/rings.json").read_text(encoding="utf-8"))
    return {path: ring for ring, paths in named.items() for path in paths}


def ring_of(module: Module) -> str | None:
    path = Path(module.relative).relative_to("roll")
    return next((ring for each in (path, *path.parents) if (ring := rings().get(str(each)))), None)


def num_lines(module: Module) -> int:
    return len(module.path.read_text(encoding="utf-8").splitlines())


@cache
def sources() -> dict[str, Module]:
    return {module.name: module for module in modules("roll")}


def imported(module: Module, at_once: bool) -> set[str]:
    """Modules of roll that a module imports. `at_once`: those that importing it imports too, so neither inside
    functions nor under TYPE_CHECKING."""

    def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                yield child
            elif at_once and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for branch in child.orelse:
                    yield from statements(branch)
            elif not at_once or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                yield from statements(child)

    names = set[str]()
    for statement in statements(module.tree):
        if isinstance(statement, ast.Import):
            names |= {alias.name for alias in statement.names}
        else:
            names |= {f"{statement.module}", *(f"{statement.module}.{alias.name}" for alias in statement.names)}
    return {name for name in names if name in sources()} - {module.name}


def test_every_file_is_in_a_ring_or_in_the_kernel() -> None:
    assert [module.relative for module in modules("roll") if module.tree.body and ring_of(module) is None] == []
    assert [path for path in rings() if not (REPOSITORY / "roll" / path).exists()] == []


def test_the_kernel_imports_fewer_and_fewer_modules_of_rings() -> None:
    edges = [
        f"{module.relative} -> {name}"
        for module in modules("roll")
        if ring_of(module) == KERNEL
        for name in sorted(imported(module, at_once=False))
        if sources()[name].tree.body and ring_of(sources()[name]) != KERNEL
    ]
    assert len(edges) <= KERNEL_IMPORTS_OF_RINGS, edges


@pytest.mark.parametrize("entry", CLOSURES)
def test_an_entry_imports_fewer_and_fewer_lines(entry: str) -> None:
    names, most = CLOSURES[entry]
    reached, new = set[str](), set(names)
    while new:
        reached |= new
        new = set[str]().union(*(imported(sources()[name], at_once=True) for name in new)) - reached
    assert sum(num_lines(sources()[name]) for name in reached) <= most


def test_a_plan_imports_fewer_and_fewer_lines() -> None:
    code = (
        "import sys; from roll.__main__ import main\n"
        "try: main(['plan', 'examples/tiny-sort/tiny_sort.yaml', '--elsewhere'])\n"
        "except SystemExit: pass\n"
        "print('\\nMODULES', *(name for name in sys.modules if name.split('.')[0] == 'roll'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    names = done.stdout.rpartition("MODULES")[2].split()
    assert "roll.configs.plan.describe" in names, done.stderr
    assert sum(num_lines(sources()[name]) for name in names if name in sources()) <= LINES_OF_A_PLAN
