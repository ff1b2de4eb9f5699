"""The little of pytest that tests in data sets use: it is called pytest in the sandbox of the tests.

Marks stay on functions and classes as attributes, which units.py reads.
"""

import importlib
import itertools
import math
import numbers
import re


class raises:
    """Stands in for pytest.raises: `with raises(ValueError, match=...) as info:`, where `info.value` is the exception,
    or `raises(ValueError, f, 1)`."""

    def __init__(self, expected, *call, match=None, **keywords):
        self._expected, self._match = expected, match
        self.value = self.type = None
        if call:
            with self:
                call[0](*call[1:], **keywords)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is None:
            raise AssertionError(f"{self._expected} was not raised")
        if not issubclass(kind, self._expected):
            return False
        self.value, self.type = error, kind
        return self._match is None or self.match(self._match)

    def match(self, pattern):
        if not re.search(pattern, str(self.value)):
            raise AssertionError(f"{str(self.value)!r} does not match {pattern!r}")
        return True


class approx:
    """Equal to a number, or to numbers in a list, tuple, mapping or array, that is near."""

    def __init__(self, expected, rel=None, abs=None, nan_ok=False):
        self._expected, self._tolerances, self._nan_ok = expected, (rel, abs), nan_ok

    def __eq__(self, other):
        return self._same(_listed(other), _listed(self._expected))

    def _same(self, got, expected):
        if isinstance(expected, dict):
            return (
                isinstance(got, dict)
                and got.keys() == expected.keys()
                and all(self._same(got[k], expected[k]) for k in got)
            )
        if isinstance(expected, list | tuple):
            return isinstance(got, list | tuple) and len(got) == len(expected) and all(map(self._same, got, expected))
        if not isinstance(expected, numbers.Number):
            return type(got) is type(expected) and got == expected
        return isinstance(got, numbers.Number) and self._near(got, expected)

    def _near(self, got, expected):
        rel, absolute = self._tolerances
        if got == expected or (self._nan_ok and got != got and expected != expected):
            return True
        rel = rel if rel is not None else (0.0 if absolute is not None else 1e-6)
        absolute = 1e-12 if absolute is None else absolute
        if isinstance(got, complex) or isinstance(expected, complex):
            return abs(got - expected) <= max(rel * abs(expected), absolute)
        return math.isclose(got, expected, rel_tol=rel, abs_tol=absolute)


def _listed(value):
    return value.tolist() if hasattr(type(value), "tolist") else value


class Skipped(Exception):
    """A test that does not want to be run: no test."""


def skip(reason="", **_):
    raise Skipped(reason)


def fail(reason="", pytrace=True):
    raise AssertionError(reason)


def importorskip(name, *_, **__):
    return importlib.import_module(name)


def main(*_, **__):
    """The tests are run anyway."""
    return 0


class fixture:
    """Stands in for pytest.fixture, a decorator with or without arguments. Scopes beyond a test's become the file's."""

    def __init__(self, function=None, scope="function", params=None, autouse=False, ids=None, name=None):
        self.function, self.scope, self.autouse = function, scope, autouse
        self.params = None if params is None else [_values(value) for value in params]
        self.name = name or (function.__name__ if function is not None else None)

    def __call__(self, function):
        if self.function is not None:
            raise TypeError(f"{self.name} is a fixture: a test asks for it by a parameter")
        self.function, self.name = function, self.name or function.__name__
        return self


class param:
    def __init__(self, *values, id=None, marks=()):
        marks = marks if isinstance(marks, list | tuple) else [marks]
        self.values, self.is_skipped = values, any(getattr(mark, "skips", False) for mark in marks)


def _values(value):
    return value.values[0] if isinstance(value, param) else value


class _Mark:
    """A mark without a meaning here, with or without arguments; `skips`: who bears it is not run."""

    def __init__(self, skips=False):
        self.skips = skips

    def __call__(self, *marked, **_):
        if len(marked) == 1 and callable(marked[0]):
            return _marked(marked[0], "pytest_skips", self.skips) if self.skips else marked[0]
        return self


def _marked(thing, name, value):
    setattr(thing, name, value)
    return thing


class _Marks:
    skip = xfail = _Mark(skips=True)

    def __getattr__(self, name):
        return _Mark()

    def skipif(self, condition, **_):
        return _Mark(skips=bool(condition))

    def usefixtures(self, *names):
        return lambda thing: _marked(thing, "pytest_fixtures", (*getattr(thing, "pytest_fixtures", ()), *names))

    def parametrize(self, names, values, ids=None, indirect=False, scope=None):
        names = [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else list(names)
        rows = []
        for value in values:
            if isinstance(value, param):
                row = None if value.is_skipped else value.values
            else:
                row = (value,) if len(names) == 1 else tuple(value)
            if row is not None and len(row) != len(names):
                raise ValueError(f"parametrize has {len(names)} names and {len(row)} values: {value!r:.100}")
            rows += [] if row is None else [dict(zip(names, row, strict=False))]

        def decorate(thing):
            before = getattr(thing, "pytest_parameters", [({}, {})])
            through = set(names) if indirect is True else set(indirect or ())
            now = [
                (
                    {**values, **{k: v for k, v in row.items() if k not in through}},
                    {**to_fixtures, **{k: v for k, v in row.items() if k in through}},
                )
                for (values, to_fixtures), row in itertools.product(before, rows)
            ]
            return _marked(thing, "pytest_parameters", now)

        return decorate


mark = _Marks()
