"""Python sources by their paths, read and never imported: what a name stands for, and what a class has."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.layout.source import dotted

Function = ast.FunctionDef | ast.AsyncFunctionDef
_MAKERS = ("object", "ABC", "Protocol", "Generic", "Struct", "BaseModel", "NamedTuple")  # they add no parameters


@dataclass(frozen=True)
class Found:
    """node: what binds a name in `module`, None for the module itself. owner: the class whose body that is in."""

    module: str
    node: ast.AST | None = None
    owner: ast.ClassDef | None = None


class Sources:
    """files: texts by their paths from the folder that is imported from."""

    def __init__(self, files: Mapping[str, str]):
        self._files = files
        self._folders = {path[: i + 1] for path in files for i, letter in enumerate(path) if letter == "/"}
        self._trees: dict[str, ast.Module] = {}
        self._bindings: dict[str, dict[str, list[ast.AST]]] = {}
        self._found: dict[tuple[str, str], list[Found]] = {}

    def has(self, module: str, name: str = "") -> bool:
        """Whether `from module import name` finds something; without a name, `import module`."""
        return bool(self.find(module, name))

    def find(self, module: str, name: str = "") -> list[Found]:
        """All that `from module import name` may give: what binds it at the module's top, or a module below. What comes
        from other packages is found as the import that brings it."""
        if (module, name) not in self._found:
            self._found[module, name] = self._find(module, name, frozenset())
        return self._found[module, name]

    def _find(self, module: str, name: str, asked: frozenset[tuple[str, str]]) -> list[Found]:
        """`asked` is what is on the way here: modules may take each other's names in a circle."""
        if not name:
            return [Found(module)] if self.is_module(module) else []
        if (module, name) in asked:
            return []
        asked |= {(module, name)}
        bindings = self.bindings(module)
        found = [each for node in bindings.get(name, ()) for each in self._followed(module, name, node, asked)]
        if not found:
            stars = [self.source_of(module, node) for node in bindings.get("*", ()) if isinstance(node, ast.ImportFrom)]
            found = [each for source in stars for each in self._find(source, name, asked)]
        if not found and self.is_module(f"{module}.{name}"):
            found = [Found(f"{module}.{name}")]
        return found

    def resolve(self, module: str, expression: ast.expr) -> list[Found]:
        """What a plain or dotted name at the top of a module may be."""
        head, *rest = (dotted(expression) or "").split(".")
        found = self.find(module, head) if head else []
        for name in rest:
            found = [inner for each in found for inner in self.member(each, name)]
        return found

    def member(self, found: Found, name: str) -> list[Found]:
        """An attribute of a module, or of a class, its own or a base's."""
        if found.node is None:
            return self.find(found.module, name)
        if not isinstance(found.node, ast.ClassDef):
            return []
        for above in self.lineage(found):
            assert isinstance(above.node, ast.ClassDef)
            if own := [node for bound, node in bound_names(above.node.body) if bound == name]:
                return [Found(above.module, node, above.node) for node in own]
        return []

    def lineage(self, found: Found) -> list[Found]:
        """A class and all above it that are in these sources, nearest first."""
        line = [found]
        for base in found.node.bases if isinstance(found.node, ast.ClassDef) else ():
            named = base.value if isinstance(base, ast.Subscript) else base
            above = [each for each in self.resolve(found.module, named) if isinstance(each.node, ast.ClassDef)]
            line += [each for first in above[:1] for each in self.lineage(first) if each not in line]
        return line

    def is_whole(self, found: Found) -> bool:
        """Whether all that can give a class its parameters is in its lineage."""
        for each in self.lineage(found):
            assert isinstance(each.node, ast.ClassDef)
            for base in each.node.bases:
                named = base.value if isinstance(base, ast.Subscript) else base
                known = any(isinstance(above.node, ast.ClassDef) for above in self.resolve(each.module, named))
                if not known and (dotted(named) or "").rpartition(".")[2] not in _MAKERS:
                    return False
        return True

    def is_module(self, module: str) -> bool:
        path = module.replace(".", "/")
        return f"{path}.py" in self._files or f"{path}/" in self._folders

    def below(self, package: str) -> list[str]:
        """The package and all modules in it."""
        folder = package.replace(".", "/")
        paths = sorted(path for path in self._files if path.startswith(f"{folder}/"))
        names = (path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in paths)
        return [name for name in names if self.is_module(name)]

    def tree(self, module: str) -> ast.Module:
        """Empty for a folder without an `__init__.py`."""
        if module not in self._trees:
            path = module.replace(".", "/")
            self._trees[module] = ast.parse(self._files.get(f"{path}.py", self._files.get(f"{path}/__init__.py", "")))
        return self._trees[module]

    def bindings(self, module: str) -> dict[str, list[ast.AST]]:
        """Names that running a module binds at its top, `*` for all names of another, with the nodes that do."""
        if module not in self._bindings:
            names: dict[str, list[ast.AST]] = {}
            for name, node in bound_names(self.tree(module).body):
                names.setdefault(name, []).append(node)
            self._bindings[module] = names
        return self._bindings[module]

    def source_of(self, module: str, node: ast.ImportFrom) -> str:
        """The whole name of the module that an import in `module` takes names from."""
        parts = module.split(".")
        is_package = f"{module.replace('.', '/')}/__init__.py" in self._files
        base = parts[: len(parts) - node.level + is_package] if node.level else []
        return ".".join([*base, *([node.module] if node.module else [])])

    def _followed(self, module: str, name: str, node: ast.AST, asked: frozenset[tuple[str, str]]) -> list[Found]:
        """What a binding stands for in the end."""
        if isinstance(node, ast.ImportFrom):
            source = self.source_of(module, node)
            (original,) = {each.name for each in node.names if (each.asname or each.name) == name}
            return self._find(source, original, asked) if self.is_module(source) else [Found(module, node)]
        if isinstance(node, ast.Import):
            for each in node.names:
                whole = each.name if each.asname == name else name
                if (each.asname or each.name.split(".")[0]) == name and self.is_module(whole):
                    return [Found(whole)]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id != name:
            return self._find(module, node.value.id, asked) or [Found(module, node)]
        return [Found(module, node)]


def bound_names(body: Sequence[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Names that these statements bind, under if, try and with as well, each with the node that does it."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Import):
            yield from ((each.asname or each.name.split(".")[0], node) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((each.asname or each.name, node) for each in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
            yield from ((each.id, node) for each in names if isinstance(each.ctx, ast.Store))
        else:
            yield from bound_names([*ast.iter_child_nodes(node)])
