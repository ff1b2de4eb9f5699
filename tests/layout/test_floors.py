"""Imports go down only, each engine stays in its file's floor, and Ray lives in one package (docs/architecture.md)."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.layout.source import REPOSITORY, Module, modules, parse

FLOORS = {
    "roll.errors": 0,
    "roll.utils": 1,
    "roll.configs": 2,
    "roll.types": 3,
    "roll.platforms": 3,
    "roll.algorithms": 4,
    "roll.datasets": 4,
    "roll.models": 5,
    "roll.distributed.weights": 6,
    "roll.distributed.strategy": 7,
    "roll.distributed.executor": 8,
    "roll.distributed.scheduler": 9,
    "roll.pipeline": 10,
    "roll.pipeline.rlvr": 11,
    "roll.pipeline.agentic": 11,
    "roll.pipeline.sft": 11,
    "roll.pipeline.dpo": 11,
    "roll.pipeline.rm": 11,
    "roll.pipeline.distill": 11,
    "roll.commands.run": 12,
    "roll.importers": 12,
    "roll.commands": 12,
    "roll.report": 12,
    "roll.doctor": 13,
    "roll.studio": 13,
    "roll.api": 13,  # `import roll`: the same runs from Python
    "roll.commands": 12,
    "roll.commands.push": 12,
    "roll.commands.evaluate": 13,
    "roll.commands": 13,
    "roll.commands.table": 13,
    "roll.commands.completion": 14,  # a command of its own, which reads the others
    "roll.__main__": 14,
    "roll.commands.explain": 14,  # a command of its own: what the code of a run computes
    "roll.commands.explain": 13,
    "roll.importers.__main__": 14,
    "roll.simulate": 13,  # a command of its own, beside the core that it plays
}

ENGINES = {"deepspeed", "vllm", "sglang", "megatron", "accelerate", "peft"}

# package -> what nothing in it may import, on top of the floors
FORBIDDEN = {
    "roll.errors": {"torch", "ray", "numpy", "pydantic", "transformers"} | ENGINES,
    "roll.utils": {"torch", "ray", "numpy", "pydantic", "hydra", "omegaconf", "transformers"} | ENGINES,
    "roll.configs": {"torch", "ray", "numpy", "transformers"} | ENGINES,
    "roll.types": {"transformers"} | ENGINES,
    "roll.platforms": {"transformers"} | ENGINES,
    "roll.algorithms": {"torch.distributed", "transformers"} | ENGINES,
    "roll.datasets": {"torch.distributed"} | ENGINES,
    "roll.models": ENGINES - {"megatron", "peft"},
    "roll.distributed.weights": {"transformers"} | ENGINES,
    "roll.distributed.scheduler": {"torch", "transformers"} | ENGINES,
    "roll.simulate": {"ray", "transformers"} | ENGINES,
    "roll.pipeline": ENGINES,
    "roll.pipeline.rlvr": ENGINES,
    "roll.pipeline.agentic": ENGINES,
    "roll.pipeline.sft": ENGINES,
    "roll.pipeline.dpo": ENGINES,
    "roll.pipeline.rm": ENGINES,
    "roll.pipeline.distill": ENGINES,
    "roll.commands.run": {"torch", "ray", "transformers"} | ENGINES,
    "roll.importers": {"torch", "ray", "numpy", "transformers"} | ENGINES,
    "roll.commands": ENGINES | {"ray"},
    "roll.report": {"torch", "ray", "transformers"} | ENGINES,
    "roll.api": {"torch", "ray", "transformers"} | ENGINES,
    "roll.studio": {"torch", "ray", "transformers"} | ENGINES,
    "roll.commands": {"torch", "ray", "transformers"} | ENGINES,
    "roll.commands.table": {"torch", "ray", "numpy", "transformers"} | ENGINES,
}


def package_of(name: str) -> str | None:
    """The floor's package that a dotted name is in: the longest that fits."""
    fitting = [package for package in FLOORS if name == package or name.startswith(package + ".")]
    return max(fitting, key=len) if fitting else None


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def climbing_imports(module: Module) -> Iterator[str]:
    """Imports of a higher floor, or of a neighbour on the same one."""
    own = package_of(module.name)
    for name, line in module.imports:
        other = package_of(name)
        if own is None or other is None or own == other:
            continue
        if FLOORS[other] >= FLOORS[own]:
            yield f"{module.relative}:{line}: {own} (floor {FLOORS[own]}) imports {name} (floor {FLOORS[other]})"


def forbidden_imports(module: Module) -> Iterator[str]:
    for package in FORBIDDEN.keys() & {package_of(module.name)}:
        for name, line in module.imports:
            for forbidden in FORBIDDEN[package]:
                if is_within(name, forbidden):
                    yield f"{module.relative}:{line}: {package} may not import {name}"


def ray_imports(module: Module) -> Iterator[str]:
    for name, line in module.imports:
        if is_within(name, "ray") and package_of(module.name) != "roll.distributed.executor":
            yield f"{module.relative}:{line}: imports {name} outside roll.distributed.executor"


def test_imports_go_down_only() -> None:
    assert [text for module in modules("roll") for text in climbing_imports(module)] == []


def test_every_module_stands_on_a_floor() -> None:
    stray = [m.relative for m in modules("roll") if package_of(m.name) is None and m.path.name != "__init__.py"]
    assert stray == []


def test_ray_is_imported_by_the_executor_only() -> None:
    """And by what is started beside a run: examples/launch."""
    looked = [module for module in modules("roll", "examples") if not module.relative.startswith("examples/launch/")]
    assert [text for module in looked for text in ray_imports(module)] == []


def test_packages_import_no_library_that_is_not_theirs() -> None:
    assert [text for module in modules("roll") for text in forbidden_imports(module)] == []


@pytest.mark.parametrize(
    "name, text, check",
    [
        ("roll.types.batch", "def f():\n    from roll.models.hf import x", climbing_imports),
        ("roll.types.batch", "import roll.platforms.table", climbing_imports),
        ("roll.pipeline.step", "from roll.pipeline.rlvr import rewards", climbing_imports),
        ("roll.pipeline.rlvr.x", "from roll.envs import y", climbing_imports),
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
    assert [node.module for node in at_once if isinstance(node, ast.ImportFrom)] == ["importlib", "typing"]
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
