"""The side of the answer: loads /box/solution.py and does with it what it is asked to, until nobody asks any more.

It knows no expected result. What it replies is what the answer made of the arguments, and nobody trusts it further.
"""

import builtins
import collections
import copy
import importlib.machinery
import importlib.util
import os
import resource
import sys
import time
import types
import typing

from names import common_names
from wire import Channel, PeerClosed, plain, value_of

MUTABLE = (list, dict, set, bytearray)


class AnswerSide:
    def __init__(self, channel, cpu_s):
        self._channel, self._cpu_s = channel, cpu_s
        self._objects = []
        self._numbers = {}
        self._named = {}
        self._loop = None
        self._common_names = common_names()
        self._module = types.ModuleType("solution")

    def load(self):
        loader = importlib.machinery.SourceFileLoader("solution", "/box/solution.py")
        builtins.__dict__.update(self._common_names)  # not its own names: an answer that defines nothing has nothing
        self._module.__spec__ = importlib.util.spec_from_loader("solution", loader)
        sys.modules["solution"] = self._module
        loader.exec_module(self._module)

    def serve(self):
        while True:
            self.reply(self._channel.receive())

    def reply(self, request):
        try:
            message = ["ok", *getattr(self, f"do_{request[0]}")(*request[1:])]
        except PeerClosed:
            raise
        except BaseException as error:
            message = [*failure(error), *self._of_error(error)]
        self._channel.send(message)

    def _of_error(self, error):
        try:
            return [self._plain(list(error.args)), [[name, self._plain(value)] for name, value in vars(error).items()]]
        except Exception:
            return []

    def do_begin(self):
        """A case begins: it has CPU time of its own."""
        used = int(time.process_time()) + 1
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (min(used + self._cpu_s, hard), hard))
        return [None]

    def do_names(self):
        """Return the names that the answer defines, each with the built-in exceptions that it derives from."""
        exceptions = {
            name: value
            for name, value in vars(self._module).items()
            if not (name.startswith("__") and name.endswith("__")) and self._common_names.get(name, self) is not value
        }
        return [[name, exception_bases(value)] for name, value in exceptions.items()]

    def do_name(self, name):
        return [self._plain(vars(self._module)[name])]

    def do_candidate(self, name):
        return [self._plain(self._function(name))]

    def do_solve(self, name, arguments):
        return [self._plain(self._function(name)(*self._value(arguments)))]

    def _function(self, name):
        function = vars(self._module).get(name)
        if function is None:
            solution = vars(self._module).get("Solution")
            if solution is None:
                raise NameError(f"there is no function {name}")
            function = getattr(solution(), name)
        return function

    def do_await(self, number):
        import asyncio  # takes a while, and few answers need it

        async def wait():
            return await self._objects[number]

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return [self._plain(self._loop.run_until_complete(wait()))]

    def do_call(self, number, arguments, keywords):
        values = [self._value(argument) for argument in arguments]
        named = {name: self._value(value) for name, value in keywords.items()}
        result = self._objects[number](*values, **named)
        changed = {}
        for index, value in enumerate(values):
            if isinstance(value, MUTABLE) and (now := self._plain(value)) != arguments[index]:
                changed[str(index)] = now
        return [self._plain(result), changed]

    def do_get(self, number, name):
        return [self._plain(getattr(self._objects[number], name))]

    def do_set(self, number, name, value):
        setattr(self._objects[number], name, self._value(value))
        return [None]

    def do_type(self, number):
        return [self._plain(type(self._objects[number]))]

    def do_is(self, number, what):
        value = self._objects[number]
        return [callable(value) if what == "callable" else isinstance(value, type)]

    def do_copy(self, number, is_deep):
        return [self._plain((copy.deepcopy if is_deep else copy.copy)(self._objects[number]))]

    def do_signature(self, number):
        """(name, kind, [default] or [], [annotation] or []) of each parameter, and [annotation] or [] of the result."""
        import inspect  # takes a while, and few tests ask for one

        signature, none = inspect.signature(self._objects[number]), inspect.Signature.empty

        def encoded(value):
            return [] if value is none else [self._plain(value)]

        parameters = signature.parameters.values()
        return [
            [[one.name, int(one.kind), encoded(one.default), encoded(one.annotation)] for one in parameters],
            encoded(signature.return_annotation),
        ]

    def do_operate(self, number, name, arguments):
        """Apply an operator or a built-in function to an object, by the method of its class."""
        target = self._objects[number]
        values = [self._value(argument) for argument in arguments]
        if name in ("__bool__", "__str__", "__repr__", "__iter__", "__hash__"):
            built_in = {"__bool__": bool, "__str__": str, "__repr__": repr, "__iter__": iter, "__hash__": hash}[name]
            return [self._plain(built_in(target))]
        if name == "isinstance":
            return [isinstance(values[0], target)]
        if name == "issubclass":
            return [issubclass(values[0], target)]
        method = getattr(type(target), name, None)
        if method is None:
            raise TypeError(f"{type(target).__name__} has no {name}")
        result = method(target, *values)
        return [["undefined"] if result is NotImplemented else self._plain(result)]

    def _plain(self, value):
        return plain(value, self._keep)

    def _keep(self, value):
        if isinstance(value, tuple):
            kind: typing.Any = type(value)
            items = [self._plain(item) for item in tuple.__iter__(value)]
            return ["n", self._number(kind), kind.__name__, list(kind._fields), *items]
        return ["object", self._number(value)]

    def _number(self, value):
        """One object has one number, so that the tests may ask whether it is the same."""
        if id(value) not in self._numbers:
            self._objects.append(value)
            self._numbers[id(value)] = len(self._objects) - 1
        return self._numbers[id(value)]

    def _value(self, message) -> typing.Any:
        return value_of(message, self._find)

    def _find(self, mark, number, *more):
        if mark == "n":
            return self._named_tuple(number, *more)
        return self._objects[number] if mark == "object" else self._callback(number)

    def _named_tuple(self, number, name, fields, *items):
        """One of the answer's class with this number, or of a class of the tests."""
        key = (name, *fields)
        if number is None and key not in self._named:
            self._named[key] = collections.namedtuple(name, fields)
        kind = self._named[key] if number is None else self._objects[number]
        return tuple.__new__(kind, [self._value(item) for item in items])

    def _callback(self, number):

        def call(*arguments):
            self._channel.send(["callback", number, [self._plain(argument) for argument in arguments]])
            while (message := self._channel.receive())[0] not in ("ok", "raise"):
                self.reply(message)  # the function of the tests calls back
            if message[0] == "raise":
                raise getattr(builtins, message[1], RuntimeError)(message[2])
            return self._value(message[1])

        return call


def exception_bases(value):
    """Names of the built-in exceptions that an exception class of the answer is one of; None for other things."""
    if not (isinstance(value, type) and issubclass(value, BaseException)):
        return None
    return [base.__name__ for base in value.__mro__]


def failure(error):
    return ["raise", [base.__name__ for base in type(error).__mro__], str(error)[:500]]


def main():
    channel = Channel()
    side = AnswerSide(channel, int(sys.argv[1]))
    channel.send(["ready"])  # what ends before this is no answer's doing
    channel.receive()
    os.dup2(1, 2)
    sys.setrecursionlimit(100_000)
    builtins.exit = builtins.quit = sys.exit
    side.do_begin()
    try:
        side.load()
    except BaseException as error:
        channel.send(failure(error))
        return
    channel.send(["ok"])
    try:
        side.serve()
    except PeerClosed:
        return


main()
