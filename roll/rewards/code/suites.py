"""Texts of asserts and test functions, read without running them: what they take from the answer, and why one cannot
judge it."""

import ast
import builtins
import symtable
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

from roll.rewards.code.guest.names import LIBRARIES, common_names

TOOLS = frozenset({*common_names(), *LIBRARIES, *dir(builtins)})
PROMOTED = frozenset(name for name, value in common_names().items() if not isinstance(value, ModuleType))
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Suite:
    """A text of tests. `takes`: names that it uses, and `bound`: that it defines, for all of it; `libraries`: those of
    packages that it did not import; `local_names`: those of Python's and its library's that are the answer's here;
    `called`: functions of its own that it calls; `asserts`: whether something outside of test functions tests;
    `collects`: whether pytest may find tests in it."""

    text: str
    takes: tuple[str, ...]
    bound: tuple[str, ...]
    libraries: tuple[str, ...]
    local_names: tuple[str, ...]
    called: tuple[str, ...]
    asserts: bool
    collects: bool


@lru_cache(maxsize=4096)
def read_suite(text: str, function: str | None) -> Suite:
    """Raises ValueError if the text is no Python."""
    tree, used, bound = parse(text)
    imported = from_solution(tree)
    free = used - bound
    answer_names = frozenset({function} if function else ())
    if not imported and not free - TOOLS and function not in free and not (function and "check" in bound):
        answer_names |= free & PROMOTED  # as `gcd`: nothing else in the text can be the answer's
    called = {node.func.id for node in walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    answers = (free - TOOLS) | answer_names | imported
    names = (used, bound, (free & LIBRARIES.keys()) - answer_names, answer_names, called)
    takes, binds, libraries, theirs, helpers = (tuple(sorted(each)) for each in names)
    return Suite(text, takes, binds, libraries, theirs, helpers, _asserts(tree, answers), _collects(tree))


def parse(text: str) -> tuple[ast.Module, frozenset[str], frozenset[str]]:
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


def from_solution(tree: ast.Module) -> frozenset[str]:
    """Names that are imported from the answer, `*` and the module's own among them."""
    names: set[str] = set()
    for node in walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name for alias in node.names if alias.name.split(".")[0] == "solution"}
        elif isinstance(node, ast.ImportFrom) and node.module == "solution":
            names |= {alias.asname or alias.name for alias in node.names}
    return frozenset(names)


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it but what stands behind `if __name__ == "__main__"`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not is_main(child):
            yield from walk(child)
        elif isinstance(child, ast.If):
            for other in child.orelse:
                yield from walk(other)


def at_module_level(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if is_main(child):
            continue
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from at_module_level(child)


def is_main(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.ops[0], ast.Eq)
        and {ast.unparse(node.test.left), ast.unparse(node.test.comparators[0])} == {"__name__", "'__main__'"}
    )


def _asserts(tree: ast.Module, answers: frozenset[str]) -> bool:
    """Whether the text tests as it is loaded: it asserts, raises, or calls the answer or a function of its own."""
    functions = frozenset(node.name for node in walk(tree) if isinstance(node, Function | ast.ClassDef))
    return any(_is_check(node, answers | functions) for node in at_module_level(tree))


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


def _collects(tree: ast.Module) -> bool:
    tops = [*at_module_level(tree)]
    names = [node.name for node in tops if isinstance(node, Function) and not _is_skipped(node)]
    names += [node.id for node in tops if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    is_class_of_tests = any(isinstance(node, ast.ClassDef) and _may_hold_tests(node) for node in tops)
    return is_class_of_tests or any(name.startswith("test") for name in names)


def _may_hold_tests(node: ast.ClassDef) -> bool:
    tests = [inner for inner in node.body if isinstance(inner, Function) and inner.name.startswith("test")]
    if _is_skipped(node) or (tests and all(map(_is_skipped, tests))):
        return False
    return node.name.startswith("Test") or any(ast.unparse(base) != "object" for base in node.bases)


def _is_skipped(node: Function | ast.ClassDef) -> bool:
    """Whether it is marked to be left out, whatever the answer is."""
    return any(_last(mark.func if isinstance(mark, ast.Call) else mark) == "skip" for mark in node.decorator_list)


def _end(tree: ast.Module) -> int | None:
    """Return the line in which the text ends itself, or its tests, as it is loaded."""
    for node in tree.body:
        call = node.value if isinstance(node, ast.Expr) else None
        is_exit = isinstance(call, ast.Call) and _last(call.func) in ("exit", "_exit", "quit", "skip")
        if is_exit or isinstance(node, ast.Raise):
            return node.lineno
    return None


AFAR = "which does not reach the answer: it runs in another process"
FAR = frozenset({"capsys", "capfd", "capsysbinary", "caplog", "monkeypatch", "mocker", "recwarn", "tmp_path"})
"""Fixtures."""


@lru_cache(maxsize=4096)
def problem_of_suite(text: str, function: str | None) -> str | None:
    """Why the text cannot judge an answer, as far as reading tells."""
    try:
        tree, used, bound = parse(text)
        suite = read_suite(text, function)
    except ValueError as error:
        return str(error)
    functions = [node for node in walk(tree) if isinstance(node, Function)]
    has_check = any(node.name == "check" for node in functions) or "check" in bound
    if (line := _end(tree)) is not None:
        return f"has no test that runs to its end: line {line} ends it as it is loaded"
    if not (suite.asserts or suite.collects or has_check):
        return "holds no test that runs: write asserts, functions named test_..., or check(candidate)"
    if has_check and function is None and not (suite.asserts or suite.collects):
        return "defines check(candidate), and nothing names the candidate: name it in column 'test_case_function'"
    arguments = {argument.arg for node in functions if node.name.startswith("test") for argument in node.args.args}
    if far := FAR & arguments:
        return f"has a test with the fixture {min(far)}, {AFAR}"
    if "mock" in text and any(_last(node) == "patch" for node in walk(tree)):
        return f"uses patch, {AFAR}"
    is_used = (used - bound - TOOLS) | set(suite.local_names) | from_solution(tree) or "solution" in text
    if not is_used and not (function and has_check):
        return (
            "uses nothing of the answer (built-in names are Python's own): name the function in column "
            "'test_case_function', or import it from solution"
        )
    return None


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
