"""The other process, as the side of the tests asks it.

A message that is not of the protocol ends the talk: whoever sends one speaks for the answer, and has lost.
"""

import collections
from typing import Any

from raised import Raised
from stand_ins import Remote
from wire import PeerClosed, plain, plain_name, value_of

MOST_CLASSES, MOST_FIELDS = 200, 255  # of named tuples: making one takes time

FOUL = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError, MemoryError, StopIteration)


class Peer:
    """The other process."""

    def __init__(self, channel):
        self._channel = channel
        self._functions = []
        self._raised = Raised()
        self._remotes = {}
        self._named = {}
        self.is_gone = self.is_asked = False  # asked: since a test began

    def names(self):
        """Return the names that the answer defines: name -> None, or the exception class that stands for the answer's
        own, so that tests can catch it."""
        (*pairs,) = self._answer("names")
        return self._read(lambda: self._raised.classes([(plain_name(name), bases) for name, bases in pairs]))

    def name(self, name):
        return self.ask("name", name)

    def begin(self):
        if not self.is_gone:
            self._answer("begin")
        self.is_asked = False

    def ask(self, *request):
        reply = self._answer(*request)
        return self._read(lambda: self._value(reply[0]))

    def stand_in(self, *request):
        """A reply that must be an object of the other side."""
        reply = self._answer(*request)
        return self._read(lambda: self._find(*reply[0]))

    def class_number(self, kind):
        """Number of a named tuple's class, if the response defined it; None otherwise."""
        return next((key[0] for key, made in self._named.items() if made is kind), None)

    def signature(self, number):
        import inspect  # takes a while, and few tests ask for one

        reply = self._answer("signature", number)

        def read():
            parameters, result = reply
            none = inspect.Signature.empty

            def decoded(values):
                return self._value(values[0]) if values else none

            return inspect.Signature(
                [
                    inspect.Parameter(
                        name, inspect._ParameterKind(kind), default=decoded(default), annotation=decoded(noted)
                    )
                    for name, kind, default, noted in parameters
                ],
                return_annotation=decoded(result),
            )

        return self._read(read)

    def operate(self, number, name, arguments):
        reply = self._answer("operate", number, name, [self.plain(argument) for argument in arguments])
        if reply == [["undefined"]]:
            return NotImplemented
        return self._read(lambda: self._value(reply[0]))

    def call(self, number, arguments, keywords):
        """Lists, sets and mappings that the function changed are changed here as well."""
        named = {name: self.plain(value) for name, value in keywords.items()}
        reply = self._answer("call", number, [self.plain(argument) for argument in arguments], named)

        def read():
            result, changed = reply
            return self._value(result), [
                (arguments[at(index, arguments)], self._value(changed[index])) for index in changed
            ]

        result, changes = self._read(read)
        for mine, now in changes:
            _become(mine, now)
        return result

    def plain(self, value):
        return plain(value, self._keep)

    def _keep(self, value):
        if isinstance(value, Remote):
            return ["object", value._number]
        if isinstance(value, tuple):
            kind: Any = type(value)
            return ["n", self.class_number(kind), kind.__name__, list(kind._fields), *map(self.plain, value)]
        if not callable(value):
            name = type(value).__name__
            raise TypeError(f"a test cannot pass a {name} to the answer, which is in another process")
        self._functions.append(value)
        return ["callback", len(self._functions) - 1]

    def _value(self, message):
        return value_of(message, self._find)

    def _find(self, mark, number, *more):
        if mark == "n":
            return self._named_tuple(number, *more)
        if mark != "object" or type(number) is not int or more:
            raise ValueError("an unknown mark")
        return self._remotes.setdefault(number, Remote(self, number))

    def _named_tuple(self, number, name, fields, *items):
        """A tuple as Python makes it: nothing of its class comes from the other side but names."""
        key = (number if type(number) is int else None, plain_name(name), *map(plain_name, fields))
        if key not in self._named:
            if len(self._named) >= MOST_CLASSES or len(fields) > MOST_FIELDS:
                raise ValueError("too many classes, or fields of one")
            self._named[key] = collections.namedtuple(name, fields)
        return self._named[key]._make(self._value(item) for item in items)

    def _read(self, read):
        try:
            return read()
        except FOUL as error:
            self.is_gone = True
            raise PeerClosed from error

    def _answer(self, *request) -> list:
        """The values of the reply. On the way there the other side may call functions that it was given."""
        self.is_asked = True
        try:
            self._channel.send(request)
            while True:
                message = self._channel.receive()
                kind, *values = message if isinstance(message, list) and message else [None]
                if kind == "ok":
                    return values
                if kind == "raise":
                    raise self._read(lambda values=values: self._error(request, *values))
                if kind != "callback":
                    raise PeerClosed
                function, arguments = self._read(lambda values=values: self._called(*values))
                self._channel.send(self._called_back(function, arguments))
        except PeerClosed:
            self.is_gone = True
            raise

    def _error(self, request, bases, text, arguments=None, attributes=()):
        may_end = request[0] == "await" or (request[0] == "operate" and request[2] in ("__next__", "__anext__"))
        values = [] if arguments is None else self._value(arguments)
        return self._raised.error(
            bases, text, values, {name: self._value(value) for name, value in attributes}, may_end
        )

    def _called(self, number, arguments):
        return self._functions[at(number, self._functions)], [self._value(argument) for argument in arguments]

    def _called_back(self, function, arguments):
        try:
            return ["ok", self.plain(function(*arguments))]
        except Exception as error:
            return ["raise", type(error).__name__, str(error)]


def at(index, values):
    """The index, if there is such a value. Raises ValueError."""
    number = int(index)
    if not 0 <= number < len(values):
        raise ValueError("no such value")
    return number


def _become(mine, now):
    if isinstance(mine, list | bytearray) and isinstance(now, list | bytearray):
        mine[:] = now
    elif isinstance(mine, set | dict) and type(now) is type(mine):
        mine.clear()
        mine.update(now)
