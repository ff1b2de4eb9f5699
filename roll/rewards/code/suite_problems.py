"""Why a text of tests cannot judge an answer, as far as reading tells; guest/files.py finds the rest."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache

from roll.rewards.code.guest import pytest_stand_in
from roll.rewards.code.suites import (
    TOOLS,
    Function,
    Suite,
    at_module_level,
    from_solution,
    is_main,
    local_nodes,
    parse,
    read_suite,
    walk,
)

FAR_FIXTURES = frozenset({"capsys", "capfd", "capsysbinary", "caplog", "monkeypatch", "mocker", "recwarn", "tmp_path"})
AFAR = "which does not reach the answer: it runs in another process"
REDIRECTED = frozenset({"redirect_stdout", "redirect_stderr"})
FAR = REDIRECTED | {"patch", "getsource", "getsourcelines"}
FAR_FROM = frozenset({"unittest.mock", "mock", "contextlib", "inspect"})
BY_TEXT = frozenset({"eval", "exec", "globals", "vars", "__import__", "import_module"})


@lru_cache(maxsize=4096)
def problem_of_suite(text: str, function: str | None) -> str | None:
    """Why the text cannot judge an answer."""
    try:
        tree, used, bound = parse(text)
        suite = read_suite(text, function)
    except ValueError as error:
        return str(error)
    return (
        _out_of_reach(tree)
        or _derived(tree, (used - bound - TOOLS) | from_solution(tree))
        or _no_test(tree, suite, function)
        or _missing_fixture(tree, suite)
        or _no_answer(tree, suite, used - bound, function)
    )


def _no_test(tree: ast.Module, suite: Suite, function: str | None) -> str | None:
    tops = [*at_module_level(tree)]
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
    if any(map(is_main, ast.walk(tree))):
        return ": what stands behind if __name__ == '__main__' does not run, so take that line away"
    asserting = [name for name, node in functions.items() if any(isinstance(n, ast.Assert) for n in ast.walk(node))]
    if asserting:
        return f": nobody calls {asserting[0]}, so name it test_{asserting[0]}"
    return ": write asserts, functions named test_..., or check(candidate)"


def _generator(tests: Sequence[Function]) -> str | None:
    for node in tests:
        if any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in local_nodes(node)):
            return f"has a test that is a generator, {node.name}, which nothing runs: write it without yield"
    return None


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
    for node in walk(tree):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            name = _last_name(base)
            if name in answers and not name.endswith(("Error", "Exception")):
                return f"derives a class from {name} of the answer, {AFAR}"
    return None


def _is_case(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """Return whether a class may be a TestCase: a base that is not among `classes`, other than object, could be one."""
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
    names = [inner.name for inner in node.body if isinstance(inner, Function)]
    names = [name for name in names if name.startswith("test") or name == "runTest"]
    names += ["test"] if any(isinstance(inner, ast.Assign | ast.ClassDef) for inner in node.body) else []
    for base in map(ast.unparse, node.bases):
        if base in classes and base != node.name:
            names += _test_names(classes[base], classes)
    return names


def _is_fixture(node: Function) -> bool:
    return any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)


def _missing_fixture(tree: ast.Module, suite: Suite) -> str | None:
    """A test that asks for what there is not. One whose decorators are not pytest's own marks may get it from those."""
    all_functions = [node for node in walk(tree) if isinstance(node, Function)]
    known = {node.name for node in all_functions if _is_fixture(node)} | {"request", "self", "cls"}
    renamed = any(_is_fixture(node) and "name=" in ast.unparse(node.decorator_list[0]) for node in all_functions)
    in_module = {node for node in at_module_level(tree) if isinstance(node, Function)}
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
    nodes = [*walk(tree)]
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
    if (
        (free - TOOLS)
        or (free & set(suite.local_names))
        or from_solution(tree)
        or free & BY_TEXT
        or "solution" in suite.text
    ):
        return None
    if function is not None and any(isinstance(n, Function) and n.name == "check" for n in tree.body):
        return None
    return (
        "uses nothing of the answer (built-in names are Python's own): name the function in column "
        "'test_case_function', or import it from solution"
    )
