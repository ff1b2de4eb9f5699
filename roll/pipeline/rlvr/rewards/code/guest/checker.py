"""The side of the tests: runs them against an answer that lives in another sandbox.

The names of the answer stand for objects over there. Expected values never leave this process: what comes back from a
call is data, and it is compared here. It says on stderr, in lines of JSON, what became of each test.
"""

import builtins
import importlib.abc
import importlib.util
import inspect
import json
import linecache
import os
import sys
import types
import unittest

from names import MODULES, common_names
from remote import Peer
from wire import Channel, Gone


class SolutionModule(types.ModuleType):
    """What `import solution` gives the tests."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(f"the answer defines no {name}")


class Tests:
    def __init__(self, peer, function, say):
        self._peer, self._say = peer, say
        defined = peer.names()
        module = SolutionModule("solution")
        vars(module).update(defined)
        sys.modules["solution"] = module
        own = {module.__name__ for module in MODULES} | set(dir(builtins)) - {function}
        self._names = common_names() | {name: value for name, value in defined.items() if name not in own}
        self._candidate = self._names.get(function)

    def run(self, index, text, skip):
        """One file: all of it, or its test functions after the first `skip`."""
        loader = TextLoader(file_name(index), text)
        module = types.ModuleType(f"case_{index}")
        vars(module).update(self._names)
        module.__spec__ = importlib.util.spec_from_loader(module.__name__, loader)
        sys.modules[module.__name__] = module
        try:
            self._peer.begin()
            loader.exec_module(module)
        except Gone:
            self._say("file", index, False, "the answer's process ended")
            raise
        except BaseException as error:
            kind = "fault" if is_own_fault(error, index) else "file"
            self._say(kind, index, False, text_of(error))
            return
        units = list(self._units(module))
        self._say("units", index, len(units))
        for at, unit in enumerate(units[skip:], skip):
            self._say("unit", index, at, *self._outcome(unit))
            if self._peer.is_gone:
                raise Gone
        if not units:
            self._say("file", index, True, "")

    def _outcome(self, unit):
        try:
            self._peer.begin()
            unit()
        except Gone:
            return False, "the answer's process ended"
        except BaseException as error:
            return False, text_of(error)
        return True, ""

    def _units(self, module):
        """Test functions, methods of test classes, and HumanEval's `check(candidate)`."""
        own = {name: value for name, value in vars(module).items() if self._names.get(name, self) is not value}
        functions = {name: value for name, value in own.items() if isinstance(value, types.FunctionType)}
        for name, function in functions.items():
            if name.startswith("test"):
                yield from expanded(function)
        for name, value in own.items():
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield from self._methods(name, value)
        check = functions.get("check")
        if check is not None and self._candidate is not None and not any(name.startswith("test") for name in functions):
            yield lambda: check(self._candidate)

    def _methods(self, name, cls):
        names = [method for method in vars(cls) if method.startswith("test")]
        if issubclass(cls, unittest.TestCase):
            yield from (cls(method).debug for method in names)
        elif name.startswith("Test"):
            for method in names:
                yield from expanded(getattr(cls(), method))


class TextLoader(importlib.abc.SourceLoader):
    def __init__(self, path, text):
        self._path, self._text = path, text
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)

    def get_filename(self, fullname):
        return self._path

    def get_data(self, path):
        return self._text.encode()


def file_name(index):
    return f"case_{index}.py"


def expanded(function):
    """A test, once for each of its parameters."""
    cases = getattr(function, "parameters", None)
    if cases is None:
        yield function
        return
    for keywords in cases:
        yield lambda keywords=keywords: function(**keywords)


def is_own_fault(error, index):
    if isinstance(error, SyntaxError):
        return error.filename == file_name(index)
    return isinstance(error, ModuleNotFoundError)


def text_of(error):
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    lines = [
        frame.code_context[0].strip() for frame in frames if frame.filename.startswith("case_") and frame.code_context
    ]
    where = f" in: {lines[-1][:200]}" if lines else ""
    return f"{type(error).__name__}: {str(error)[:200]}{where}"


def main():
    channel = Channel()
    report = os.fdopen(os.dup(2), "w", encoding="utf-8")
    os.dup2(1, 2)
    sys.setrecursionlimit(20_000)
    sys.set_int_max_str_digits(0)

    def say(*message):
        report.write(json.dumps(message) + "\n")
        report.flush()

    with open("/box/cases.json", encoding="utf-8") as file:
        task = json.load(file)
    try:
        loaded = channel.receive()
        if loaded[0] != "ok":
            say("broken", f"{loaded[1][0]}: {loaded[2]}")
            return
        tests = Tests(Peer(channel), task["function"], say)
    except Gone:
        say("broken", "the answer's process ended")
        return
    try:
        start, skip = task["start"]
        for index, text in list(enumerate(task["files"]))[start:]:
            tests.run(index, text, skip if index == start else 0)
    except Gone:
        say("again")


main()
