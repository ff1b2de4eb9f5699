"""The library as the layout tests see it: modules, their imports and their calls, read without importing any."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
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

    def imports(self) -> Iterator[tuple[str, int]]:
        """(dotted name, line) of everything imported, at the top, inside functions and under TYPE_CHECKING alike."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.relative}:{node.lineno}: relative import; write the whole name"
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """(dotted name as it would be without import aliases, call) of each call of a plain or dotted name."""
        aliases: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                aliases |= {alias.asname: alias.name for alias in node.names if alias.asname is not None}
            elif isinstance(node, ast.ImportFrom):
                aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and (name := dotted(node.func)) is not None:
                head, _, rest = name.partition(".")
                yield ".".join(filter(None, (aliases.get(head, head), rest))), node


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


@cache
def modules(*folders: str) -> tuple[Module, ...]:
    """Every Python file below the given folders of the repository."""
    found = []
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(name, path, ast.parse(path.read_text(encoding="utf-8"), filename=str(path))))
    return tuple(found)
