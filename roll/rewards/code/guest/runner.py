"""pytest, for the tests of a module that is loaded already."""

import inspect
import os
import tempfile
import types
import unittest

import pytest
from _pytest.skipping import evaluate_skip_marks

OFF = "cacheprovider terminal warnings logging faulthandler doctest junitxml pastebin stepwise"
OPTIONS = ("-s", "--assert=plain", "-c", os.devnull, *(f"-pno:{name}" for name in OFF.split()))


class Run:
    """Shows pytest what of a module is not the answer's, and runs the tests.

    `begin()` is called before each test that counts, `report(passed, why)` after it, and `is_over()` ends the run.
    `is_foreign(value)`: whether it is the answer's, and so no test. The first `skip` tests are left out. One that skips
    itself has passed None if it was not `is_asked()`, whether it asked the answer anything, and has failed otherwise.
    """

    def __init__(self, file, module, is_foreign, skip=0, is_asked=lambda: True):
        self._file, self._is_foreign, self._skip, self._is_asked = file, is_foreign, skip, is_asked
        self._shown = types.ModuleType(module.__name__)
        vars(self._shown).update({name: value for name, value in vars(module).items() if not is_foreign(value)})
        self._failure = ""

    def __call__(self, count, begin, report, is_over):
        """`count(number)` is told how many there are before the first one. Returns why none could be collected."""
        self._count, self._begin, self._report, self._is_over = count, begin, report, is_over
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, f"{self._file.name}.py")  # empty: the module is loaded already
            with open(path, "w", encoding="utf-8"):
                run_pytest([*OPTIONS, path], plugins=[self])
        return self._failure

    def pytest_pycollect_makemodule(self, module_path, parent):
        module = pytest.Module.from_parent(parent, path=module_path)
        module.obj = self._shown
        return module

    def pytest_pycollect_makeitem(self, collector, name, obj):
        """Leaves out what is the answer's, and helpers: functions that the file calls with arguments."""
        if self._is_foreign(obj):
            return []
        is_helper = name in self._file.called and not hasattr(obj, "pytestmark") and bool(_parameters(obj))
        return [] if is_helper else None

    def pytest_collectreport(self, report):
        if report.failed:
            self._failure = str(report.longrepr)[-500:]

    def pytest_runtestloop(self, session):
        items = [] if session.testsfailed else [item for item in session.items if not _is_skipped(item)]
        if items:
            self._count(len(items))
        for item, following in zip(items[self._skip :], [*items[self._skip + 1 :], None], strict=False):
            self._failure, self._is_left_out = "", False
            try:
                self._begin()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            except BaseException as error:
                self._failure = self._file.text_of(error)
            self._report(None if self._is_left_out and not self._failure else not self._failure, self._failure)
            if self._is_over():
                break
        self._failure = self._failure if not items else ""
        return True

    def pytest_pyfunc_call(self, pyfuncitem):
        if not inspect.iscoroutinefunction(pyfuncitem.obj):
            return None
        import asyncio  # takes a while, and few tests need it

        names = pyfuncitem._fixtureinfo.argnames
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True

    def pytest_runtest_makereport(self, item, call):
        """A report that shows no object of the answer."""
        error = None if call.excinfo is None else call.excinfo.value
        why = None if error is None else self._file.text_of(error)
        is_skipped = isinstance(error, pytest.skip.Exception | unittest.SkipTest) and not self._is_asked()
        outcome = "skipped" if is_skipped else "failed" if why else "passed"
        return pytest.TestReport(item.nodeid, item.location, {}, outcome, why, call.when)

    def pytest_runtest_logreport(self, report):
        self._is_left_out = self._is_left_out or report.skipped
        self._failure = self._failure or (str(report.longrepr) or "it failed" if report.failed else "")


def _parameters(function):
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _is_skipped(item):
    marked = [getattr(item, "obj", None), getattr(item, "cls", None)]
    names = ("__unittest_skip__", "__unittest_expecting_failure__")
    return (
        item.get_closest_marker("xfail") is not None
        or evaluate_skip_marks(item) is not None
        or any(getattr(thing, name, False) for thing in marked for name in names)
    )


run_pytest = pytest.main
unittest.main = pytest.main = lambda *_, **__: 0  # the tests are run anyway
