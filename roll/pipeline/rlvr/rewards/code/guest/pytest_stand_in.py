"""The little of pytest that tests in data sets use: it is called pytest in the sandbox of the tests."""

import math
import re


class raises:
    """`with raises(ValueError, match=...) as info:`; `info.value` is the exception."""

    def __init__(self, expected, match=None):
        self._expected, self._match = expected, match
        self.value = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is None:
            raise AssertionError(f"{self._expected} was not raised")
        if not issubclass(kind, self._expected):
            return False
        self.value = error
        if self._match is not None and not re.search(self._match, str(error)):
            raise AssertionError(f"{str(error)!r} does not match {self._match!r}")
        return True


class approx:
    """Equal to a number, or to numbers in a list, tuple or mapping, that is near."""

    def __init__(self, expected, rel=None, abs=None):
        self._expected, self._given = expected, (rel, abs)

    def __eq__(self, other):
        return self._same(other, self._expected)

    def _same(self, got, expected):
        if isinstance(expected, dict):
            return (
                isinstance(got, dict)
                and got.keys() == expected.keys()
                and all(self._same(got[k], expected[k]) for k in got)
            )
        if isinstance(expected, list | tuple):
            return isinstance(got, list | tuple) and len(got) == len(expected) and all(map(self._same, got, expected))
        rel, absolute = self._given
        if not isinstance(got, int | float):
            return False
        rel = rel if rel is not None else (0.0 if absolute is not None else 1e-6)
        return math.isclose(got, expected, rel_tol=rel, abs_tol=1e-12 if absolute is None else absolute)


def fail(reason=""):
    raise AssertionError(reason)


class mark:
    @staticmethod
    def parametrize(names, values, ids=None):
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

        def decorate(function):
            rows = [dict(zip(names, value if len(names) > 1 else (value,), strict=False)) for value in values]
            before = getattr(function, "parameters", [{}])
            function.parameters = [{**old, **new} for old in before for new in rows]
            return function

        return decorate


def param(*values, id=None):
    return values[0] if len(values) == 1 else values
