"""Keys that unimported sources ask mappings for, by the name that a mapping has there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tests.helpers.unimported.sources import Sources


def looked_up(sources: Sources, modules: Iterable[str], mappings: tuple[str, ...]) -> frozenset[str]:
    """Texts and names of texts in `d["x"]`, `d.get(x)`, `"x" in d` and `f(d, "x")`, where d has one of these names or
    is an attribute of that name."""
    return frozenset(
        text
        for module in modules
        for holder, key, meanings in _asked(sources.tree(module), {})
        if ast.unparse(holder).removesuffix(".keys()").rpartition(".")[2] in mappings
        for text in _texts(sources, module, key, meanings)
    )


Meanings = dict[str, list[ast.expr]]  # of local names: defaults of parameters, members that a loop goes through


def _asked(node: ast.AST, meanings: Meanings) -> Iterator[tuple[ast.expr, ast.expr, Meanings]]:
    """(mapping, key, local names) of each place that asks for a key."""
    match node:
        case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
            places = [*arguments.posonlyargs, *arguments.args]
            with_default = places[len(places) - len(arguments.defaults) :]
            pairs = zip(with_default, arguments.defaults, strict=True)
            meanings = meanings | {each.arg: [default] for each, default in pairs}
        case ast.DictComp(generators=loops) | ast.ListComp(generators=loops) | ast.SetComp(generators=loops):
            for loop in loops:
                if isinstance(loop.target, ast.Name) and isinstance(loop.iter, ast.Tuple | ast.List):
                    meanings = meanings | {loop.target.id: loop.iter.elts}
        case ast.Call(func=ast.Attribute(value=holder, attr="get" | "pop"), args=[key, *_]):
            yield holder, key, meanings
        case ast.Call(args=[holder, key, *_]):
            yield holder, key, meanings
        case ast.Subscript(value=holder, slice=key):
            yield holder, key, meanings
        case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[holder]):
            yield holder, key, meanings
    for child in ast.iter_child_nodes(node):
        yield from _asked(child, meanings)


def _texts(sources: Sources, module: str, key: ast.expr, meanings: Meanings) -> Iterator[str]:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        yield key.value
    elif isinstance(key, ast.Name) and key.id in meanings:
        for meaning in meanings[key.id]:
            yield from _texts(sources, module, meaning, {})
    elif isinstance(key, ast.Name):
        for found in sources.find(module, key.id):
            if isinstance(found.node, ast.Assign) and isinstance(found.node.value, ast.Constant):
                yield str(found.node.value.value)
