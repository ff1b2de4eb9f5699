"""Texts of asserts and test functions, read without running them: what of them is a test, and what they take from the
answer. What can be told here is told before the run starts; guest/files.py finds the rest."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

from roll.pipeline.rlvr.rewards.code.guest import pytest_stand_in
from roll.pipeline.rlvr.rewards.code.guest.names import LIBRARIES, common_names

TOOLS = frozenset({*common_names(), *LIBRARIES, *dir(builtins)})
FAR_FIXTURES = frozenset({"capsys", "capfd", "capsysbinary", "caplog", "monkeypatch", "mocker", "recwarn"})
AFAR = "which does not reach the answer: it runs in another process"
REDIRECTED = frozenset({"redirect_stdout", "redirect_stderr"})
FAR = REDIRECTED | {"patch", "getsource", "getsourcelines"}
FAR_FROM = frozenset({"unittest.mock", "mock", "contextlib", "inspect"})
PROMOTED = frozenset(name for name, value in common_names().items() if not isinstance(value, ModuleType))
BY_TEXT = frozenset({"eval", "exec", "globals", "vars", "__import__", "import_module"})
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Suite:
    """A text of tests. `takes`: names that it uses or defines for all of it; `libraries`: those of packages that it did
    not import; `own`: those of Python's and its library's that are the answer's here; `called`: functions of its own
    that it calls; `asserts`: whether something outside of test functions tests."""

    text: str
    takes: tuple[str, ...]
    libraries: tuple[str, ...]
    own: tuple[str, ...]
    called: tuple[str, ...]
    asserts: bool


@lru_cache(maxsize=4096)
def read_suite(text: str, function: str | None) -> Suite:
    """Raises ValueError if the text is no Python."""
    tree, used, bound = _parse(text)
    from_solution = _from_solution(tree)
    free = used - bound
    own = frozenset({function} if function else ())
    if not from_solution and not free - TOOLS and function not in free and not (function and "check" in bound):
        own |= free & PROMOTED  # as `gcd`: nothing else in the text can be the answer's
    called = {node.func.id for node in _walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    answers = (free - TOOLS) | own | from_solution
    names = (used | bound, (free & LIBRARIES.keys()) - own, own, called)
    takes, libraries, theirs, helpers = (tuple(sorted(each)) for each in names)
    return Suite(text, takes, libraries, theirs, helpers, _asserts(tree, answers))


@lru_cache(maxsize=4096)
def problem_of_suite(text: str, function: str | None) -> str | None:
    """Why the text cannot judge an answer."""
    try:
        tree, used, bound = _parse(text)
        suite = read_suite(text, function)
    except ValueError as error:
        return str(error)
    return (
        _out_of_reach(tree)
        or _derived(tree, (used - bound - TOOLS) | _from_solution(tree))
        or _no_test(tree, suite, function)
        or _missing_fixture(tree, suite)
        or _no_answer(tree, suite, used - bound, function)
    )


def _parse(text: str) -> tuple[ast.Module, frozenset[str], frozenset[str]]:
    """The tree, the names that are used as global ones, and those that are defined as such."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
            table = symtable.symtable(text, "case", "exec")
    except SyntaxError as error:
        version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        raise ValueError(f"is no {version}: line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"is no Python: {error}") from None
    used: set[str] = set()
    bound: set[str] = set()
    for inner in _tables(table):
        is_module = inner is table
        for symbol in inner.get_symbols():
            is_global = is_module or symbol.is_global()
            if is_global and symbol.is_referenced():
                used.add(symbol.get_name())
            if (is_module or symbol.is_declared_global()) and (
                symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
            ):
                bound.add(symbol.get_name())
    return tree, frozenset(used), frozenset(bound)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _from_solution(tree: ast.Module) -> frozenset[str]:
    """Names that are imported from the answer, `*` and the module's own among them."""
    found: set[str] = set()
    for node in _walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name for alias in node.names if alias.name.split(".")[0] == "solution"}
        elif isinstance(node, ast.ImportFrom) and node.module == "solution":
            found |= {alias.asname or alias.name for alias in node.names}
    return frozenset(found)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it but what stands behind `if __name__ == "__main__"`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not _is_main(child):
            yield from _walk(child)
        elif isinstance(child, ast.If):
            for other in child.orelse:
                yield from _walk(other)


def _at_module_level(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if _is_main(child):
            continue
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _at_module_level(child)


def _is_main(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.ops[0], ast.Eq)
        and {ast.unparse(node.test.left), ast.unparse(node.test.comparators[0])} == {"__name__", "'__main__'"}
    )


def _asserts(tree: ast.Module, answers: frozenset[str]) -> bool:
    """Whether the text tests as it is loaded: it asserts, raises, or calls the answer or a function of its own."""
    functions = frozenset(node.name for node in _walk(tree) if isinstance(node, Function | ast.ClassDef))
    return any(_is_check(node, answers | functions) for node in _at_module_level(tree))


def _is_check(node: ast.AST, callable_names: frozenset[str]) -> bool:
    if isinstance(node, ast.Assert | ast.Raise):
        return True
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    while isinstance(function, ast.Attribute | ast.Call | ast.Subscript):
        if isinstance(function, ast.Attribute) and function.attr.lower().startswith("assert"):
            return True
        function = function.func if isinstance(function, ast.Call) else function.value
    return isinstance(function, ast.Name) and function.id in callable_names


def _no_test(tree: ast.Module, suite: Suite, function: str | None) -> str | None:
    tops = [*_at_module_level(tree)]
    classes = {node.name: node for node in tops if isinstance(node, ast.ClassDef)}
    functions = {node.name: node for node in tops if isinstance(node, Function)}
    tests = [node for name, node in functions.items() if name.startswith("test") and not _is_fixture(node)]
    assigned = {node.id for node in tops if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    problem = _generator(tests) or _class_problem(classes)
    if problem:
        return problem
    collected = any(_is_collected(node, classes) and _test_names(node, classes) for node in classes.values())
    if tests or collected or suite.asserts or any(name.startswith("test") for name in assigned):
        return None
    if "check" in functions or "check" in assigned:
        if function is not None:
            return None
        return "defines check(candidate), and nothing names the candidate: name it in column 'test_case_function'"
    return f"holds no test{_why_no_test(tree, functions)}"


def _why_no_test(tree: ast.Module, functions: dict[str, Function]) -> str:
    if not tree.body:
        return ": nothing but comments"
    if any(map(_is_main, ast.walk(tree))):
        return ": what stands behind if __name__ == '__main__' does not run, so take that line away"
    asserting = [name for name, node in functions.items() if any(isinstance(n, ast.Assert) for n in ast.walk(node))]
    if asserting:
        return f": nobody calls {asserting[0]}, so name it test_{asserting[0]}"
    return ": write asserts, functions named test_..., or check(candidate)"


def _generator(tests: Sequence[Function]) -> str | None:
    for node in tests:
        if any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in _own_nodes(node)):
            return f"has a test that is a generator, {node.name}, which nothing runs: write it without yield"
    return None


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _own_nodes(child)


def _class_problem(classes: dict[str, ast.ClassDef]) -> str | None:
    bases = {base.id for node in classes.values() for base in node.bases if isinstance(base, ast.Name)}
    for name, node in classes.items():
        tests = [inner for inner in node.body if isinstance(inner, Function) and inner.name.startswith("test")]
        if problem := _generator(tests):
            return problem
        if any(isinstance(each, ast.AsyncFunctionDef) for each in tests) and "TestCase" in map(_last_name, node.bases):
            return f"has async tests in class {name}, which a TestCase does not run: use IsolatedAsyncioTestCase"
        if tests and not _is_collected(node, classes) and name not in bases:
            return (
                f"has tests in class {name}, which nothing runs: name it Test..., or derive it from unittest.TestCase"
            )
        if (
            tests
            and not _is_case(node, classes)
            and any(n.name == "__init__" for n in node.body if isinstance(n, Function))
        ):
            return f"has tests in class {name}, which has an __init__, and so nothing runs them: use setup_method"
    return None


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).split(".")[-1]


def _derived(tree: ast.Module, answers: frozenset[str]) -> str | None:
    """A class of the tests that derives from one of the answer, which is in another process; exceptions are here."""
    for node in _walk(tree):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            name = _last_name(base)
            if name in answers and not name.endswith(("Error", "Exception")):
                return f"derives a class from {name} of the answer, {AFAR}"
    return None


def _is_case(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """Whether it is a TestCase, as far as can be seen; a base from elsewhere may be one."""
    for base in map(ast.unparse, node.bases):
        if base in classes and base != node.name:
            if _is_case(classes[base], classes):
                return True
        elif base != "object":
            return True
    return False


def _is_collected(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    return node.name.startswith("Test") or _is_case(node, classes)


def _test_names(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[str]:
    """Its tests with those that it inherits; one of a base from elsewhere may be among them."""
    found = [inner.name for inner in node.body if isinstance(inner, Function)]
    found = [name for name in found if name.startswith("test") or name == "runTest"]
    found += ["test"] if any(isinstance(inner, ast.Assign | ast.ClassDef) for inner in node.body) else []
    for base in map(ast.unparse, node.bases):
        if base in classes and base != node.name:
            found += _test_names(classes[base], classes)
    return found


def _is_fixture(node: Function) -> bool:
    return any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)


def _missing_fixture(tree: ast.Module, suite: Suite) -> str | None:
    """A test that asks for what there is not. One whose decorators are not pytest's own marks may get it from those."""
    all_functions = [node for node in _walk(tree) if isinstance(node, Function)]
    known = {node.name for node in all_functions if _is_fixture(node)} | {"request", "tmp_path", "self", "cls"}
    renamed = any(_is_fixture(node) and "name=" in ast.unparse(node.decorator_list[0]) for node in all_functions)
    in_module = {node for node in _at_module_level(tree) if isinstance(node, Function)}
    for node in all_functions:
        is_test = node.name.startswith("test") and (node not in in_module or node.name not in suite.called)
        marks = [ast.unparse(decorator) for decorator in node.decorator_list]
        if not is_test or any(not mark.startswith("pytest.mark.") or "parametrize" in mark for mark in marks):
            continue
        arguments = node.args.posonlyargs + node.args.args
        arguments = arguments[: len(arguments) - len(node.args.defaults)]
        lacking = [argument.arg for argument in arguments if argument.arg not in known]
        if far := FAR_FIXTURES.intersection(lacking):
            return f"has a test with the fixture {min(far)}, {AFAR}"
        if lacking and node in in_module and not renamed:
            return f"has a test, {node.name}, with the parameter {lacking[0]}, which is no fixture here"
    return None


def _out_of_reach(tree: ast.Module) -> str | None:
    """Parts of pytest that are not there, and what would look into the answer's process."""
    nodes = [*_walk(tree)]
    imported = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    reads = any(isinstance(node, ast.Attribute) and node.attr == "getvalue" for node in nodes)
    for node in nodes:
        module, name = "", ""
        if isinstance(node, ast.Attribute):
            module, name = ast.unparse(node.value), node.attr
            if module == "sys" and name in ("stdin", "stdout") and isinstance(node.ctx, ast.Store):
                return f"sets sys.{name}, {AFAR}"
        elif isinstance(node, ast.Name):
            module, name = imported.get(node.id, ("", ""))
        if module == "pytest" and not hasattr(pytest_stand_in, name):
            return f"uses pytest.{name}, which is not there; of pytest there are raises, approx, fixture and mark"
        if module in FAR_FROM and name in FAR and (reads or name not in REDIRECTED):
            return f"uses {name}, {AFAR}"
    return None


def _no_answer(tree: ast.Module, suite: Suite, free: frozenset[str], function: str | None) -> str | None:
    if (free - TOOLS) or (free & set(suite.own)) or _from_solution(tree) or free & BY_TEXT or "solution" in suite.text:
        return None
    if function is not None and any(isinstance(n, Function) and n.name == "check" for n in tree.body):
        return None
    return (
        "uses nothing of the answer (built-in names are Python's own): name the function in column "
        "'test_case_function', or import it from solution"
    )
