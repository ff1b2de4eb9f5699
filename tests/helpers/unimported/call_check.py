"""Calls of what is imported from unimported sources: do they give what its definition takes?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from tests.helpers.unimported.signatures import Given, Parameters, constructor, is_marked, of_function, of_record
from tests.helpers.unimported.sources import Found, Function, Sources
from tests.helpers.unimported.values import PROPERTIES, Scope, Value, Values

_LOOKUPS = ("get", "pop", "setdefault")


class CallCheck:
    """`sources` hold both sides: the modules that call, and those that are called."""

    def __init__(self, sources: Sources):
        self._sources = sources
        self._values = Values(sources)
        self._open: list[tuple[str, Scope]] = []  # names whose values are being read
        self._asked: list[ast.AST] = []  # functions on the way, which hand their `**rest` on in a circle

    def faults(self, module: str, package: str) -> list[str]:
        """What calls in a module give to functions and classes of a package that these do not take."""
        found = []
        for call, scope, definitions in self.calls(module, package):
            given = self._given(call, scope)
            faults = [each.faults(given) for each in definitions]
            if all(faults):
                found += [f"{module}:{call.lineno}: {ast.unparse(call.func)}: {fault}" for fault in faults[0]]
        return found

    def calls(self, module: str, package: str) -> Iterator[tuple[ast.Call, Scope, list[Parameters]]]:
        """Calls of which every definition can be read and is in the package, with their parameters."""
        for call, scope in _calls(self._sources.tree(module), Scope(module)):
            values = self._values.of(call.func, scope)
            if any(isinstance(v.found.node, Function) and not _is_in(v.found, package) for v in values):
                continue
            definitions = [self._parameters(value) for value in values]
            found = [each for several in definitions for each in several]
            if definitions and all(definitions) and all(_is_in(each, package) for _, each in found):
                yield call, scope, [parameters for parameters, _ in found]

    def keys(self, expression: ast.expr, scope: Scope) -> tuple[frozenset[str], bool]:
        """Keys that a dictionary may have, and whether these are surely all."""
        parts: list[tuple[frozenset[str], bool]] = []
        match expression:
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                parts = [self.keys(value, scope) if key is None else _key(key) for key, value in pairs]
                parts.append((frozenset(), True))
            case ast.BinOp(left=one, op=ast.BitOr(), right=other) | ast.IfExp(body=one, orelse=other):
                parts = [self.keys(one, scope), self.keys(other, scope)]
            case ast.Name(id=name):
                if (name, scope) in self._open:  # settings = defaults | settings
                    return frozenset(), True
                self._open.append((name, scope))
                parts = [*self._filled(name, scope)]
                self._open.pop()
            case ast.Call(func=function):
                for value in self._values.of(function, scope):
                    if isinstance(value.found.node, Function):
                        inner = Scope.of(value.found)
                        nodes = [each for each in ast.walk(value.found.node) if isinstance(each, ast.Return)]
                        parts += [self.keys(each.value, inner) for each in nodes if each.value is not None]
        return frozenset(key for keys, _ in parts for key in keys), bool(parts) and all(whole for _, whole in parts)

    def _filled(self, name: str, scope: Scope) -> Iterator[tuple[frozenset[str], bool]]:
        """What the nearest function puts into a dictionary of its own."""
        function = scope.around[-1] if scope.around else None
        for node in ast.walk(function) if isinstance(function, Function) else ():
            match node:
                case ast.Assign(targets=[ast.Name(id=bound)], value=value) if bound == name:
                    yield self.keys(value, scope)
                case ast.AnnAssign(target=ast.Name(id=bound), value=ast.expr() as value) if bound == name:
                    yield self.keys(value, scope)
                case ast.AugAssign(target=ast.Name(id=bound), value=value) if bound == name:
                    yield self.keys(value, scope)
                case ast.Subscript(value=ast.Name(id=bound), slice=key, ctx=ast.Store()) if bound == name:
                    yield _key(key)

    def _given(self, call: ast.Call, scope: Scope) -> Given:
        names = frozenset(each.arg for each in call.keywords if each.arg is not None)
        rests = [self.keys(each.value, scope) for each in call.keywords if each.arg is None]
        placed = [each for each in call.args if not isinstance(each, ast.Starred)]
        return Given(
            len(placed),
            names.union(*(keys for keys, _ in rests)),
            more_places=len(placed) < len(call.args),
            more_names=not all(whole for _, whole in rests),
        )

    def _parameters(self, value: Value) -> list[tuple[Parameters, Found]]:
        """With the definition that has them; empty where it cannot be read."""
        node = value.found.node
        if isinstance(node, Function):
            if is_marked(node, *PROPERTIES):
                return []
            parameters = self._with_rest(value.found, of_function(node))
            return [(parameters.without_first() if value.is_bound else parameters, value.found)]
        if not isinstance(node, ast.ClassDef) or value.is_object:
            return []
        return [
            (self._with_rest(each, of_function(each.node)).without_first(), each)
            if isinstance(each.node, Function)
            else (of_record(self._sources, each), each)
            for each in constructor(self._sources, value.found)
        ]

    def _with_rest(self, found: Found, parameters: Parameters) -> Parameters:
        """With the names that `**rest` may hold, where all that the function does with it can be read."""
        function = found.node
        assert isinstance(function, Function)
        if function.args.kwarg is None or function in self._asked:
            return parameters
        self._asked.append(function)
        rest, names, num_read = function.args.kwarg.arg, set(parameters.names), 0
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and any(each.arg is None and _is(each.value, rest) for each in node.keywords):
                takers = [
                    each for value in self._values.of(node.func, Scope.of(found)) for each in self._parameters(value)
                ]
                if takers and not any(each.more_names for each, _ in takers):
                    names.update(name for each, _ in takers for name in each.names)
                    num_read += 1
            elif (key := _looked_up(node, rest)) is not None:
                names.add(key)
                num_read += 1
        self._asked.pop()
        is_all = num_read > 0 and num_read == sum(_is(node, rest) for node in ast.walk(function))
        return replace(parameters, names=frozenset(names), more_names=False) if is_all else parameters


def _calls(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, scope
        yield from _calls(child, scope.inside(child) if isinstance(child, Function | ast.ClassDef) else scope)


def _is_in(found: Found, package: str) -> bool:
    return found.module.split(".")[0] == package


def _key(node: ast.expr) -> tuple[frozenset[str], bool]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return frozenset({node.value}), True
    return frozenset(), False


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _looked_up(node: ast.AST, name: str) -> str | None:
    """The key, where a node asks the dictionary of that name for one."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=found), attr=attr), args=[ast.Constant(value=str(key)), *_]):
            return key if found == name and attr in _LOOKUPS else None
        case ast.Subscript(value=ast.Name(id=found), slice=ast.Constant(value=str(key))):
            return key if found == name else None
        case ast.Compare(left=ast.Constant(value=str(key)), comparators=[ast.Name(id=found)]):
            return key if found == name else None
    return None
