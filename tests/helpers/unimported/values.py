"""What expressions of unimported sources may be, as far as annotations and plain assignments say."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from tests.helpers.unimported.signatures import is_marked
from tests.helpers.unimported.sources import Found, Function, Sources, bound_names

PROPERTIES = ("property", "cached_property")
_WRAPPERS = ("Optional", "Annotated", "Final")


@dataclass(frozen=True)
class Value:
    """A module, class or function itself, an object of a class, or a function whose first parameter is filled.
    is_super: `super()`, which has what stands above the class."""

    found: Found
    is_object: bool = False
    is_bound: bool = False
    is_super: bool = False


@dataclass(frozen=True)
class Scope:
    """A place in a module: the classes and functions around it, outermost first."""

    module: str
    around: tuple[ast.ClassDef | Function, ...] = ()

    @classmethod
    def of(cls, found: Found) -> Scope:
        """The inside of a class or function."""
        assert isinstance(found.node, Function | ast.ClassDef)
        return cls(found.module, (*([found.owner] if found.owner else []), found.node))

    def inside(self, node: ast.ClassDef | Function) -> Scope:
        return replace(self, around=(*self.around, node))

    @property
    def owner(self) -> Found | None:
        """The nearest class around."""
        classes = [node for node in self.around if isinstance(node, ast.ClassDef)]
        return Found(self.module, classes[-1]) if classes else None


class Values:
    def __init__(self, sources: Sources):
        self._sources = sources
        self._known: dict[ast.expr, list[Value]] = {}
        self._local_names: dict[Function, dict[str, list[ast.AST]]] = {}
        self._stored: dict[ast.ClassDef, dict[str, list[tuple[Function, ast.AST]]]] = {}

    def of(self, expression: ast.expr, scope: Scope) -> list[Value]:
        """All that it may be; empty where it cannot be read."""
        if expression not in self._known:
            self._known[expression] = []  # for one that is asked again on the way
            self._known[expression] = self._read(expression, scope)
        return self._known[expression]

    def _read(self, expression: ast.expr, scope: Scope) -> list[Value]:
        match expression:
            case ast.Name(id=name):
                return self._named(name, scope)
            case ast.Attribute(value=inner, attr=name):
                return [each for value in self.of(inner, scope) for each in self._attribute(value, name)]
            case ast.Call(func=ast.Name(id="super")):
                return [Value(scope.owner, is_object=True, is_super=True)] if scope.owner else []
            case ast.Call(func=function):
                return [each for value in self.of(function, scope) for each in self._result(value)]
            case ast.Await(value=inner) | ast.NamedExpr(value=inner):
                return self.of(inner, scope)
            case ast.IfExp(body=one, orelse=other):
                return [*self.of(one, scope), *self.of(other, scope)]
        return []

    def objects(self, annotation: ast.expr, scope: Scope) -> list[Value]:
        """What an annotation says: objects of the classes that it names."""
        match annotation:
            case ast.Constant(value=str(text)):
                return self.objects(ast.parse(text, mode="eval").body, scope)
            case ast.Name(id="Self"):
                return [Value(scope.owner, is_object=True)] if scope.owner else []
            case ast.Name() | ast.Attribute():
                named = (value for value in self.of(annotation, scope) if not value.is_object)
                return [replace(each, is_object=True) for each in named if isinstance(each.found.node, ast.ClassDef)]
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return [*self.objects(left, scope), *self.objects(right, scope)]
            case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _WRAPPERS:
                return self.objects(inner.elts[0] if isinstance(inner, ast.Tuple) else inner, scope)
        return []

    def _named(self, name: str, scope: Scope) -> list[Value]:
        for i in range(len(scope.around), 0, -1):
            function, outer = scope.around[i - 1], replace(scope, around=scope.around[: i - 1])
            if isinstance(function, Function) and (found := self._local(name, function, outer)) is not None:
                return found
        return self._bound(self._sources.find(scope.module, name))

    def _local(self, name: str, function: Function, outer: Scope) -> list[Value] | None:
        """What a function's own name may be; None where it has no such name."""
        arguments = function.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        for each in parameters:
            if each.arg == name and each.annotation is not None:
                return self.objects(each.annotation, outer)
        if parameters and parameters[0].arg == name and outer.around and isinstance(outer.around[-1], ast.ClassDef):
            is_class = is_marked(function, "classmethod") or function.name == "__new__"
            owner = Found(outer.module, outer.around[-1])
            return [] if is_marked(function, "staticmethod") else [Value(owner, is_object=not is_class)]
        bindings = self._names_in(function)
        if name not in bindings:
            return None
        return [each for node in bindings[name] for each in self._binding(node, name, outer.inside(function))]

    def _names_in(self, function: Function) -> dict[str, list[ast.AST]]:
        """A function's own names, each with the statements that bind it."""
        if function not in self._local_names:
            nodes = [*ast.walk(function)]
            stored = (each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
            names: dict[str, list[ast.AST]] = {name: [] for name in stored}
            names |= {each.arg: [] for each in nodes if isinstance(each, ast.arg)}
            for name, node in bound_names(function.body):
                names.setdefault(name, []).append(node)
            self._local_names[function] = names
        return self._local_names[function]

    def _stored_in(self, node: ast.ClassDef) -> dict[str, list[tuple[Function, ast.AST]]]:
        """Attributes that the methods of a class assign to their object: where, and the statement."""
        if node not in self._stored:
            names: dict[str, list[tuple[Function, ast.AST]]] = {}
            for method in (each for each in node.body if isinstance(each, Function)):
                for each in ast.walk(method):
                    if isinstance(each, ast.Assign | ast.AnnAssign):
                        targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                        for part in (part for target in targets for part in getattr(target, "elts", [target])):
                            if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self":
                                names.setdefault(part.attr, []).append((method, each))
            self._stored[node] = names
        return self._stored[node]

    def _binding(self, node: ast.AST, name: str, scope: Scope) -> list[Value]:
        """What a statement makes of the name that it binds."""
        match node:
            case ast.ImportFrom():
                source = self._sources.source_of(scope.module, node)
                names = [each.name for each in node.names if (each.asname or each.name) == name]
                return self._bound([each for one in names for each in self._sources.find(source, one)])
            case ast.Import():
                named = [each.name for each in node.names if each.asname == name] or [name]
                return [Value(each) for module in named for each in self._sources.find(module)]
            case ast.AnnAssign(annotation=annotation):
                return self.objects(annotation, scope)
            case ast.Assign(targets=[ast.Name() | ast.Attribute()], value=value):
                return self.of(value, scope)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=parts)) if len(targets) == len(
                parts
            ):
                found = zip(map(_last_name, targets), parts, strict=True)
                return [value for target, part in found if target == name for value in self.of(part, scope)]
        return []

    def _bound(self, found: list[Found]) -> list[Value]:
        """What names at the top of modules, or in classes, are."""
        values = []
        for each in found:
            if each.node is None or isinstance(each.node, ast.ClassDef | Function):
                values.append(Value(each))
            else:
                around = (each.owner,) if each.owner else ()
                values += self._binding(each.node, "", Scope(each.module, around))
        return values

    def _attribute(self, value: Value, name: str) -> list[Value]:
        if value.found.node is None:
            return self._bound(self._sources.find(value.found.module, name))
        if not isinstance(value.found.node, ast.ClassDef):
            return []
        stored: list[Value] = []
        for above in self._sources.lineage(value.found)[value.is_super :]:
            assert isinstance(above.node, ast.ClassDef)
            own = [
                Found(above.module, node, above.node) for bound, node in bound_names(above.node.body) if bound == name
            ]
            if own:
                return [each for found in own for each in self._member(value, found)]
            for method, node in self._stored_in(above.node).get(name, ()) if value.is_object else ():
                stored += self._binding(node, name, Scope(above.module, (above.node, method)))
            if stored:
                return stored
        return []

    def _member(self, value: Value, found: Found) -> list[Value]:
        node = found.node
        if not isinstance(node, Function):
            return self._bound([found])
        if is_marked(node, "overload", "setter"):
            return []
        if is_marked(node, *PROPERTIES):
            return self._result(Value(found, is_bound=True))
        is_bound = is_marked(node, "classmethod") or (value.is_object and not is_marked(node, "staticmethod"))
        return [Value(found, is_bound=is_bound and node.name != "__new__")]

    def _result(self, value: Value) -> list[Value]:
        node = value.found.node
        if isinstance(node, Function):
            return self.objects(node.returns, Scope.of(value.found)) if node.returns is not None else []
        return [replace(value, is_object=True)] if isinstance(node, ast.ClassDef) and not value.is_object else []


def _last_name(target: ast.expr) -> str:
    return target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
