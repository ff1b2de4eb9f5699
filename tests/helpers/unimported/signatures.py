"""What functions and classes of unimported sources may be given, and what a call gives them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.helpers.unimported.sources import Found, Function, Sources
from tests.layout.source import dotted

_RECORD_BASES = ("BaseModel", "Struct", "NamedTuple")


@dataclass(frozen=True)
class Given:
    """What a call gives. more_*: it has `*x` or `**x` that cannot be read."""

    num_places: int
    names: frozenset[str]
    more_places: bool = False
    more_names: bool = False


@dataclass(frozen=True)
class Parameters:
    """places: those that may be given by place; names: by name. more_*: it has `*x` or `**x`."""

    places: tuple[str, ...]
    names: frozenset[str]
    required: frozenset[str] = frozenset()
    more_places: bool = False
    more_names: bool = False

    def faults(self, given: Given) -> list[str]:
        placed = frozenset(self.places[: given.num_places])
        faults = [] if self.more_names else [f"no parameter {name}" for name in sorted(given.names - self.names)]
        faults += [f"{name} twice" for name in sorted(given.names & placed)]
        if given.num_places > len(self.places) and not self.more_places:
            faults.append(f"{given.num_places} by place, takes {len(self.places)}")
        if not (given.more_places or given.more_names):
            faults += [f"{name} is missing" for name in sorted(self.required - given.names - placed)]
        return faults

    def without_first(self) -> Parameters:
        first, names = self.places[:1], self.places[1:]
        return replace(self, places=names, names=self.names - {*first}, required=self.required - {*first})


def of_function(function: Function) -> Parameters:
    arguments = function.args
    placed = [*arguments.posonlyargs, *arguments.args]
    named = [*arguments.args, *arguments.kwonlyargs]
    needed = placed[: len(placed) - len(arguments.defaults)]
    needed += [each for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default]
    return Parameters(
        tuple(each.arg for each in placed),
        frozenset(each.arg for each in named),
        frozenset(each.arg for each in needed),
        more_places=arguments.vararg is not None,
        more_names=arguments.kwarg is not None,
    )


def is_marked(function: Function, *names: str) -> bool:
    """Whether one of its decorators ends with one of these names."""
    return any((dotted(each) or "").rpartition(".")[2] in names for each in function.decorator_list)


def constructor(sources: Sources, found: Found) -> list[Found]:
    """The functions, or the record's class, that say what a class is called with; empty where that is not in these
    sources."""
    for above in sources.lineage(found):
        assert isinstance(above.node, ast.ClassDef)
        own = [node for node in above.node.body if isinstance(node, Function) and node.name in ("__init__", "__new__")]
        if own:
            return [Found(above.module, node, above.node) for node in own]
        if is_record(sources, above):
            return [above]
    return []


def is_record(sources: Sources, found: Found) -> bool:
    """Whether its annotated names are its parameters: a dataclass, or a model of pydantic or msgspec."""
    if _is_dataclass(found):
        return True
    bases = (base for each in sources.lineage(found) for base in getattr(each.node, "bases", ()))
    return any((dotted(base) or "").rpartition(".")[2] in _RECORD_BASES for base in bases)


def of_record(sources: Sources, found: Found) -> Parameters:
    """Fields of the class and of the records above it; a field with an alias has both names."""
    fields: dict[str, bool] = {}
    aliases: dict[str, str] = {}
    for each in reversed(sources.lineage(found)):
        assert isinstance(each.node, ast.ClassDef)
        for name, default in _fields(each.node):
            options = {option.arg: option.value for option in default.keywords} if isinstance(default, ast.Call) else {}
            if isinstance(init := options.get("init"), ast.Constant) and init.value is False:
                continue
            fields[name] = not _has_value(default)
            if isinstance(alias := options.get("alias"), ast.Constant):
                aliases[name] = str(alias.value)
    required = frozenset(name for name, needed in fields.items() if needed and name not in aliases)
    return Parameters(
        tuple(fields), frozenset(fields) | frozenset(aliases.values()), required, more_names=not sources.is_whole(found)
    )


def _is_dataclass(found: Found) -> bool:
    assert isinstance(found.node, ast.ClassDef)
    makers = (each.func if isinstance(each, ast.Call) else each for each in found.node.decorator_list)
    return any((dotted(maker) or "").rpartition(".")[2] in ("dataclass", "config") for maker in makers)


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            annotation = ast.unparse(each.annotation)
            if "ClassVar" not in annotation and annotation != "KW_ONLY":
                yield each.target.id, each.value


def _has_value(default: ast.expr | None) -> bool:
    """Whether a field may be left out."""
    if not isinstance(default, ast.Call) or (dotted(default.func) or "").rpartition(".")[2].lower() != "field":
        return default is not None
    if default.args:
        return not (isinstance(default.args[0], ast.Constant) and default.args[0].value is ...)
    return any(option.arg in ("default", "default_factory") for option in default.keywords)
