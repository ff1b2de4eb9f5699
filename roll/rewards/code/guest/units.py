"""The tests of a loaded file: test functions, methods of test classes, and HumanEval's `check(candidate)`."""

import contextlib
import inspect
import unittest

import pytest_stand_in as pytest
from fixtures import Fault, Fixtures, wanted


class Unit:
    def __init__(self, name, run):
        self.name, self.run = name, run


def units_of(module, is_answers, known, candidate, called):
    """`known`: names that the file did not define itself; `called`: those that it calls, helpers if they need arguments
    that nobody has. Raises Fault. `candidate()` is what `check` gets, None where the row names none."""
    defined = {
        name: value
        for name, value in vars(module).items()
        if not is_answers(value) and known.get(name, module) is not value
    }
    fixtures, units, seen = Fixtures(defined.values()), [], set()
    for name, value in defined.items():
        if name.startswith("test") and callable(value) and not isinstance(value, type | pytest.fixture):
            if name in called and not _can_run(value, fixtures):
                continue
            units += _of_function(name, value, None, None, module, fixtures)
        elif isinstance(value, type) and value.__module__ == module.__name__ and value not in seen:
            seen.add(value)
            units += _of_class(name, value, module, fixtures)
    check = defined.get("check")
    if callable(check) and "check" not in called and candidate is not None and len(wanted(check)) == 1:
        _refuse_generator("check", check)
        units.append(Unit("check", lambda: _finish(check(candidate()))))
    return units, fixtures.close


def _can_run(function, fixtures):
    try:
        _variants(function, None, None, fixtures)
    except Fault:
        return False
    return True


def _of_class(name, cls, module, fixtures):
    if issubclass(cls, unittest.TestCase):
        names = unittest.TestLoader().getTestCaseNames(cls) or (["runTest"] if hasattr(cls, "runTest") else [])
        for method in names:
            function = getattr(cls, method)
            _refuse_generator(f"{name}.{method}", function)
            if not (_is_skipped(function) or _is_skipped(cls)):
                yield Unit(f"{name}.{method}", lambda method=method: _run_case(cls(method)))
        return
    if not name.startswith("Test") or _is_skipped(cls):
        return
    names = dict.fromkeys(name for owner in reversed(cls.__mro__) for name in vars(owner))
    tests = [method for method in names if method.startswith("test") and callable(getattr(cls, method))]
    if tests and cls.__init__ is not object.__init__:
        raise Fault(f"class {name} has an __init__, and so it is no class of tests: use setup_method")
    for method in tests:
        yield from _of_function(method, getattr(cls, method), cls, name, module, fixtures)
    for inner, value in vars(cls).items():
        if isinstance(value, type) and inner.startswith("Test"):
            yield from _of_class(inner, value, module, fixtures)


def _of_function(name, function, cls, cls_name, module, fixtures):
    shown = f"{cls_name}.{name}" if cls_name else name
    _refuse_generator(shown, function)
    if _is_skipped(function):
        return
    for number, variant in enumerate(_variants(function, cls, name, fixtures)):
        run = lambda variant=variant: _run(function, cls, name, module, fixtures, *variant)  # noqa: E731
        yield Unit(f"{shown}[{number}]", run)


def _variants(function, cls, name, fixtures):
    """Combinations of parameters: for each the arguments, the needed fixtures, and the params of those."""
    requested = (*getattr(cls, "pytest_fixtures", ()), *getattr(function, "pytest_fixtures", ()))
    bound = function if cls is None else getattr(object.__new__(cls), name)
    variants = []
    for outer, outer_through in getattr(cls, "pytest_parameters", [({}, {})]):
        for inner, inner_through in getattr(function, "pytest_parameters", [({}, {})]):
            values, through = {**outer, **inner}, {**outer_through, **inner_through}
            needed = fixtures.needed(bound, cls, values, (*requested, *through))
            variants += [(values, needed, params) for params in fixtures.variants(needed, through)]
    return variants


def _run(function, cls, name, module, fixtures, values, needed, params):
    hooks = vars(module)
    fixtures.once("module", *_hooks(module, hooks.get("setup_module"), hooks.get("teardown_module")))
    with contextlib.ExitStack() as stack:
        instance = None if cls is None else cls()
        if cls is not None:
            fixtures.once(cls, *_hooks(cls, getattr(cls, "setup_class", None), getattr(cls, "teardown_class", None)))
            before, after = ("setup_method", "setup"), ("teardown_method", "teardown")
            owner, about = instance, getattr(instance, name)
        else:
            before, after = ("setup_function",), ("teardown_function",)
            owner, about = module, function
        for hook in after:
            if callable(getattr(owner, hook, None)):
                stack.callback(_call_hook, getattr(owner, hook), about)
        for hook in before:
            if callable(getattr(owner, hook, None)):
                _call_hook(getattr(owner, hook), about)
        made = {}
        for each in needed:
            fixtures.value(each, needed, params, instance, function, stack, made)
        arguments = dict(values)
        for each in wanted(about):
            if each not in values:
                arguments[each] = fixtures.value(each, needed, params, instance, function, stack, made)
        _finish(about(**arguments))


def _hooks(about, *hooks):
    return [lambda hook=hook: _call_hook(hook, about) if callable(hook) else None for hook in hooks]


def _call_hook(hook, about):
    hook(about) if wanted(hook) else hook()


def _refuse_generator(name, function):
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Fault(f"{name} is a generator, which nothing runs: write a test function without yield")


def _is_skipped(thing):
    return any(
        getattr(thing, name, False) for name in ("pytest_skips", "__unittest_skip__", "__unittest_expecting_failure__")
    )


def _finish(result):
    """Runs a coroutine to its end."""
    if inspect.iscoroutine(result):
        import asyncio  # takes a while, and few tests need it

        asyncio.run(result)
    elif inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise AssertionError("the test gave a generator, which nothing runs")


class _Result(unittest.TestResult):
    """Keeps the first exception."""

    def __init__(self):
        super().__init__()
        self.error = None

    def addError(self, test, err):
        self._keep(err)

    def addFailure(self, test, err):
        self._keep(err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._keep(err)

    def addSkip(self, test, reason):
        self._keep((None, pytest.Skipped(reason), None))

    def _keep(self, err):
        self.error = self.error or err[1]


def _run_case(case):
    """One test of a TestCase, with what is set up for its class and module."""
    result = _Result()
    unittest.TestSuite([case]).run(result)
    if result.error is not None:
        raise result.error
    if result.testsRun != 1:
        raise AssertionError("it was not run")
