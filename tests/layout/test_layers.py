"""Imports go to lower layers only, an engine is imported in its own package, and Ray in one (docs/architecture.md)."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter

import pytest

from tests.layout.layers import ENGINES, PACKAGES, page_table
from tests.layout.source import REPOSITORY, Module, modules, parse
from tools import draw_packages, draw_step

ARCHITECTURE = REPOSITORY / "docs" / "architecture.md"


def package_of(name: str) -> str | None:
    """The package that a dotted name is in: the longest that fits."""
    fitting = [package for package in PACKAGES if name == package or name.startswith(package + ".")]
    return max(fitting, key=len) if fitting else None


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def climbing_imports(module: Module) -> Iterator[str]:
    """Imports of a higher layer, or of a neighbour on the same one."""
    own = package_of(module.name)
    for name, line in module.imports:
        other = package_of(name)
        if own is None or other is None or own == other:
            continue
        if PACKAGES[other].layer >= PACKAGES[own].layer:
            climb = f"{own} (layer {PACKAGES[own].layer}) imports {name} (layer {PACKAGES[other].layer})"
            yield f"{module.relative}:{line}: {climb}"


def forbidden_imports(module: Module) -> Iterator[str]:
    if (package := package_of(module.name)) is None:
        return
    for name, line in module.imports:
        for forbidden in PACKAGES[package].forbidden:
            if is_within(name, forbidden):
                yield f"{module.relative}:{line}: {package} may not import {name}"


def imported_at_the_top(module: Module) -> set[str]:
    """Dotted names, and the modules that they may be in."""
    found: set[str] = set()
    for node in module.tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ray_imports(module: Module) -> Iterator[str]:
    for name, line in module.imports:
        if is_within(name, "ray") and package_of(module.name) != "roll.distributed.executor":
            yield f"{module.relative}:{line}: imports {name} outside roll.distributed.executor"


def test_imports_go_down_and_in_no_circle() -> None:
    assert [text for module in modules("roll") for text in climbing_imports(module)] == []
    stray = [m.relative for m in modules("roll") if package_of(m.name) is None and m.path.name != "__init__.py"]
    assert stray == []
    for name, package in PACKAGES.items():
        for other, inside in PACKAGES.items():
            assert not (other.startswith(name + ".") and inside.layer > package.layer), (name, other)
    # Imports at the top of a module; those inside functions run later, and those for types never.
    names = {module.name for module in modules("roll")}
    TopologicalSorter({m.name: imported_at_the_top(m) & names - {m.name} for m in modules("roll")}).prepare()


def test_packages_import_only_libraries_that_are_theirs() -> None:
    """And by what is started beside a run: examples/launch."""
    looked = [module for module in modules("roll", "examples") if not module.relative.startswith("examples/launch/")]
    assert [text for module in looked for text in ray_imports(module)] == []
    assert [text for module in modules("roll") for text in forbidden_imports(module)] == []


@pytest.mark.parametrize(
    "name, text, check",
    [
        ("roll.types.batch", "def f():\n    from roll.models.hf import x", climbing_imports),
        ("roll.algorithms.x", "import roll.datasets.rows", climbing_imports),
        ("roll.rl.pipeline", "from roll.pipeline.rlvr import rlvr_config", climbing_imports),
        ("roll.pipeline.rlvr.x", "from roll.pipeline.agentic.episode import y", climbing_imports),
        ("roll.distributed.strategy.x", "import ray.util", ray_imports),
        ("roll.algorithms.loss", "from torch import distributed", forbidden_imports),
        ("roll.configs.sections.run", "import torch", forbidden_imports),
    ],
)
def test_the_checks_see_what_they_look_for(name: str, text: str, check: Callable[[Module], Iterator[str]]) -> None:
    assert len(list(check(parse(text, name)))) == 1


def test_init_files_are_empty_but_that_of_roll() -> None:
    """Which has the names of roll.api, and imports nothing before one is used."""
    found = [m for m in modules("roll") if m.path.name == "__init__.py" and m.tree.body]
    assert [m.relative for m in found] == ["roll/__init__.py"]
    at_once = [node for node in found[0].tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    from_where = [node.module for node in at_once if isinstance(node, ast.ImportFrom)]
    assert from_where == ["importlib", "typing"]
    assert len(at_once) == 2


def test_every_package_has_an_init_file() -> None:
    folders = {module.path.parent for module in modules("roll")}
    assert [str(folder.relative_to(REPOSITORY)) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_configs_and_the_command_line_import_without_torch_or_ray() -> None:
    """What a dry run stands on: it has to end within about two seconds, on a machine that has neither."""
    names = [m.name for m in modules("roll") if package_of(m.name) in ("roll.configs", "roll.commands.run")]
    heavy = ("torch", "ray", "transformers", "numpy", *sorted(ENGINES))
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        f"print(*[name for name in {heavy!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_the_page_and_the_pictures_show_the_packages() -> None:
    """Refresh it: python -m tests.layout.test_layers"""
    page = ARCHITECTURE.read_text(encoding="utf-8").splitlines()
    first = page.index(page_table()[0])
    assert page[first : first + len(PACKAGES) + 2] == page_table()
    # Refresh it: python -m tools.draw_packages
    assert draw_packages.PICTURE.read_text(encoding="utf-8") == draw_packages.drawing()
    # Refresh it: python -m tools.draw_step
    assert draw_step.PICTURE.read_text(encoding="utf-8") == draw_step.drawing()
    text = (REPOSITORY / "roll/rl/pipeline.py").read_text(encoding="utf-8")
    step = text[text.index("    def step(self") : text.index("    def hand_over(self")]
    places = [step.index(f"self.{phase.method}(") for phase in draw_step.STEP]
    assert places == sorted(places)
    assert " -> ".join(phase.verb for phase in draw_step.STEP) in text


if __name__ == "__main__":
    text = ARCHITECTURE.read_text(encoding="utf-8")
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| layer |"))
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    ARCHITECTURE.write_text("\n".join([*lines[:start], *page_table(), *lines[end:]]) + "\n", encoding="utf-8")
