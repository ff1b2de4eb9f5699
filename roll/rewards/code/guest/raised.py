"""Exceptions of the answer, as the tests see them: of Python's class, or of one made here by its name. Nothing of the
answer's own class runs here."""

import builtins

from files import is_dunder
from wire import plain_name

ENDING = (StopIteration, StopAsyncIteration, GeneratorExit)
SAID = "_said_by_the_answer"


class Raised:
    """Exceptions of the answer, as the tests see them."""

    def __init__(self):
        self._classes = {}

    def classes(self, pairs):
        """Classes for (name, names of its bases or None) pairs; None for a name that is no exception. A class has fewer
        bases than those that derive from it, and is made first."""
        pairs.sort(key=lambda pair: len(pair[1] or ()))
        return {name: None if bases is None else self._made(name, bases) for name, bases in pairs}

    def _made(self, name, bases):
        base = next(cls for base in bases if (cls := self._classes.get(base) or _built_in(base)) is not None)
        self._classes[name] = type(name, (base,), {"__str__": _said})
        return self._classes[name]

    def error(self, bases, text, arguments, attributes, may_end):
        """The error here. One that ends a loop does so only where it `may_end` one: an answer's call in a `map` of the
        tests would end that."""
        for name in bases:
            kind = self._classes.get(name) or _built_in(name)
            if kind in (None, KeyboardInterrupt) or (issubclass(kind, ENDING) and not may_end):
                continue
            error = _with_arguments(kind, str(text), arguments)
            if error is not None:
                break
        else:
            error = RuntimeError(str(text))
        vars(error).update({plain_name(name): value for name, value in attributes.items() if not is_dunder(name)})
        vars(error)[SAID] = str(text)
        return error


def _said(self):
    return vars(self).get(SAID) or BaseException.__str__(self)


def _with_arguments(kind, text, arguments):
    """The exception with its arguments, if it says the same with them; None if it cannot be made of a text alone."""
    is_own = kind.__str__ is _said
    if is_own or all(type(one) in (str, int, float, bool, type(None)) for one in arguments):
        try:
            error = kind(*arguments)
            if is_own or str(error) == text:
                return error
        except (TypeError, ValueError):
            pass
    try:
        return kind(text)
    except TypeError:  # one that wants more, as UnicodeDecodeError
        return None


def _built_in(name):
    value = getattr(builtins, name, None)
    return value if isinstance(value, type) and issubclass(value, BaseException) else None
