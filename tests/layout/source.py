"""The library as the layout tests see it: modules, their imports and their calls, read without importing any."""

import ast
import gc
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Module:
    """name: dotted, e.g. `roll.types.batch`; for a package's `__init__.py` the package."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def relative(self) -> str:
        return str(self.path.relative_to(REPOSITORY))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def imports(self) -> tuple[tuple[str, int], ...]:
        """(dotted name, line) of everything imported, at the top, inside functions and under TYPE_CHECKING alike."""
        found: list[tuple[str, int]] = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.relative}:{node.lineno}: relative import; write the whole name"
                found += ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        return tuple(found)

    @cached_property
    def calls(self) -> tuple[tuple[str, ast.Call], ...]:
        """(dotted name as it would be without import aliases, call) of each call of a plain or dotted name."""
        aliases: dict[str, str] = {}
        found: list[tuple[str, ast.Call]] = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                aliases |= {alias.asname: alias.name for alias in node.names if alias.asname is not None}
            elif isinstance(node, ast.ImportFrom):
                aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for node in self.nodes:
            if isinstance(node, ast.Call) and (name := dotted(node.func)) is not None:
                head, _, rest = name.partition(".")
                found.append((".".join(filter(None, (aliases.get(head, head), rest))), node))
        return tuple(found)


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` for names and attributes of names; None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (value := dotted(node.value)) is not None:
        return f"{value}.{node.attr}"
    return None


def parse(text: str, name: str = "roll.example") -> Module:
    """A module that is in no file, for tests of the checks themselves."""
    return Module(name, REPOSITORY / "example.py", ast.parse(text))


def modules(*folders: str) -> tuple[Module, ...]:
    """Every Python file below the given folders of the repository."""
    return tuple(module for folder in folders for module in _modules(folder))


@cache
def _modules(folder: str) -> tuple[Module, ...]:
    found = []
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, ast.parse(path.read_text(encoding="utf-8"), filename=str(path))))
    gc.freeze()  # trees are many objects that stay
    return tuple(found)
