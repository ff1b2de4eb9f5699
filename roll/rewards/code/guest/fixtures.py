"""Fixtures of a file of tests, and what is set up before its tests as in unittest's and nose's days."""

import contextlib
import inspect
import itertools

import pytest_stand_in as pytest


class Fault(BaseException):
    """The tests themselves cannot be run, whatever the answer is; the text says why. No `except Exception` of theirs
    catches it."""


class Request:
    """Object that a fixture receives as `request`."""

    def __init__(self, tests, param, function, cls):
        self._tests, self.param, self.function, self.cls = tests, param, function, cls

    def addfinalizer(self, function):
        self._tests.callback(function)


def wanted(function):
    """The parameters that have to come from somewhere."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # one in C that tells nothing
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one.name for one in parameters if one.kind in kinds and one.default is one.empty]


class Fixtures:
    def __init__(self, values):
        self._known = {value.name: (value, None) for value in values if isinstance(value, pytest.fixture)}
        self._values = {}
        self._ends = contextlib.ExitStack()

    def close(self):
        """Ends what lasts as long as the file. What goes wrong there is no test's doing."""
        with contextlib.suppress(Exception):
            self._ends.close()

    def once(self, key, start, end):
        """Calls `start` before the first test that comes by, and `end` after the last of the file."""
        if key not in self._values:
            start()
            self._values[key] = None
            self._ends.callback(end)

    def of_class(self, cls):
        fixtures = {}
        for owner in reversed(cls.__mro__):
            for value in vars(owner).values():
                if isinstance(value, pytest.fixture):
                    fixtures[value.name] = (value, cls)
        return fixtures

    def needed(self, function, cls, provided, requested):
        """Names of all fixtures of a test, its fixtures' own included. Raises Fault for one that there is not."""
        known = {**self._known, **(self.of_class(cls) if cls else {})}
        names, pending = [], [*requested, *(name for name, (fixture, _) in known.items() if fixture.autouse)]
        pending += [name for name in wanted(function) if name not in provided]
        while pending:
            name = pending.pop(0)
            if name in names or name == "request":
                continue
            if name not in known:
                raise Fault(f"{function.__name__} asks for {name}, which is no fixture here")
            names.append(name)
            fixture, owner = known[name]
            pending += [each for each in wanted(fixture.function) if not (owner and each == "self")]
        return {name: known[name] for name in names}

    def variants(self, needed, to_fixtures):
        """Mappings fixture -> param, one for each combination of the fixtures' params."""
        several = {
            name: f.params for name, (f, _) in needed.items() if f.params is not None and name not in to_fixtures
        }
        for mix in itertools.product(*several.values()):
            yield {**to_fixtures, **dict(zip(several, mix, strict=False))}

    def value(self, name, needed, params, instance, test, stack, made):
        if name == "request":
            return Request(stack, None, test, type(instance))
        if name not in made:
            made[name] = self._start(name, needed, params, instance, test, stack, made)
        return made[name]

    def _start(self, name, needed, params, instance, test, stack, made):
        fixture, owner = needed[name]
        lasts = fixture.scope not in ("function", None)
        key = (name, id(fixture), repr(params.get(name)), owner if fixture.scope == "class" else None)
        if lasts and key in self._values:
            return self._values[key]
        stack = self._ends if lasts else stack
        function = fixture.function if owner is None else fixture.function.__get__(instance)
        arguments = {}
        for each in wanted(function):
            if each == "request":
                arguments[each] = Request(stack, params.get(name), test, type(instance))
            else:
                arguments[each] = self.value(each, needed, params, instance, test, stack, made)
        made_now = function(**arguments)
        if inspect.isgenerator(made_now):
            generator = made_now
            made_now = next(generator)
            stack.callback(lambda: next(generator, None))
        if lasts:
            self._values[key] = made_now
        return made_now
