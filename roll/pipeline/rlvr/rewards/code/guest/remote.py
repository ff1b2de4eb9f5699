"""Objects of the answer, as the tests see them.

A comparison or a sum of such an object and plain data is refused: asking the answer's class for it would hand it the
expected value, or let it decide. Between two objects of the answer it is asked. A message that is not of the protocol
ends the talk: whoever sends one speaks for the answer, and has lost.
"""

import builtins

from wire import Gone, plain, value_of

ASKED = (
    *(
        "len",
        "iter",
        "next",
        "reversed",
        "str",
        "repr",
        "bool",
        "int",
        "float",
        "complex",
        "index",
        "hash",
        "neg",
        "pos",
    ),
    *("abs", "invert", "round", "floor", "ceil", "trunc", "enter", "exit", "getitem", "setitem", "delitem"),
    *("aiter", "anext", "aenter", "aexit"),
)
EQUALITY = {"eq": False, "ne": True}
OPERATORS = (
    *("lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"),
    *("lshift", "rshift"),
)


class Remote:
    """One object over there."""

    __slots__ = ("_number", "_peer")

    def __init__(self, peer, number):
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments, **keywords):
        return self._peer.call(self._number, arguments, keywords)

    def __getattr__(self, name):
        return self._peer.ask("get", self._number, name)

    def __setattr__(self, name, value):
        self._peer.ask("set", self._number, name, self._peer.plain(value))

    def __await__(self):
        return self._peer.ask("await", self._number)
        yield

    def __instancecheck__(self, value):
        return isinstance(value, Remote) and self._peer.operate(self._number, "isinstance", (value,)) is True


def _asked(name):
    return lambda self, *arguments: self._peer.operate(self._number, name, arguments)


def _equality(name, otherwise):
    def compare(self, other):
        if not isinstance(other, Remote):
            return otherwise
        said = self._peer.operate(self._number, name, (other,))
        same = self._number == other._number
        return (same != otherwise) if said is NotImplemented else said is True

    return compare


def _operator(name):
    def operate(self, other):
        return self._peer.operate(self._number, name, (other,)) if isinstance(other, Remote) else NotImplemented

    return operate


for _make, _names in ((_asked, ASKED), (_operator, OPERATORS)):
    for _name in _names:
        setattr(Remote, f"__{_name}__", _make(f"__{_name}__"))
for _name, _otherwise in EQUALITY.items():
    setattr(Remote, f"__{_name}__", _equality(f"__{_name}__", _otherwise))


FOUL = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError, MemoryError, StopIteration)
ENDING = (StopIteration, StopAsyncIteration, GeneratorExit)


class Peer:
    """The other process."""

    def __init__(self, channel):
        self._channel = channel
        self._functions = []
        self._exceptions = {}
        self.is_gone = False

    def names(self):
        """What the answer defines: name -> None, or the exception that stands for one of its own, so that tests can
        catch it."""
        (*pairs,) = self._answer("names")
        return self._read(lambda: {plain_name(name): self._exception(name, bases) for name, bases in pairs})

    def name(self, name):
        return self.ask("name", name)

    def begin(self):
        if not self.is_gone:
            self._answer("begin")

    def ask(self, *request):
        reply = self._answer(*request)
        return self._read(lambda: self._value(reply[0]))

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
        if not callable(value):
            raise TypeError(f"a test cannot pass a {type(value).__name__} to the answer")
        self._functions.append(value)
        return ["callback", len(self._functions) - 1]

    def _value(self, message):
        return value_of(message, self._find)

    def _find(self, mark, number):
        if mark != "object" or type(number) is not int:
            raise ValueError("an unknown mark")
        return Remote(self, number)

    def _read(self, read):
        """What `read` makes of a reply. Raises Gone if it is none."""
        try:
            return read()
        except FOUL as error:
            self.is_gone = True
            raise Gone from error

    def _answer(self, *request) -> list:
        """The values of the reply. On the way there the other side may call functions that it was given."""
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
                    raise Gone
                function, arguments = self._read(lambda values=values: self._called(*values))
                self._channel.send(self._called_back(function, arguments))
        except Gone:
            self.is_gone = True
            raise

    def _called(self, number, arguments):
        return self._functions[at(number, self._functions)], [self._value(argument) for argument in arguments]

    def _called_back(self, function, arguments):
        try:
            return ["ok", self.plain(function(*arguments))]
        except Exception as error:
            return ["raise", type(error).__name__, str(error)]

    def _exception(self, name, bases):
        if bases is None:
            return None
        base = next(found for found in map(_built_in, bases) if found is not None)
        self._exceptions[name] = type(name, (base,), {})
        return self._exceptions[name]

    def _error(self, request, bases, text):
        """The error here. One that ends a loop does so only where the tests asked for a next item: an answer's call in
        a `map` of the tests would end that."""
        asked = request[0] == "await" or (request[0] == "operate" and request[2] in ("__next__", "__anext__"))
        for name in bases:
            kind = self._exceptions.get(name) or _built_in(name)
            if kind is None or (issubclass(kind, ENDING) and not asked):
                continue
            try:
                error = kind(str(text))
                break
            except TypeError:  # one that wants more, as UnicodeDecodeError
                continue
        else:
            error = RuntimeError(str(text))
        error.is_of_answer = True  # pyright: ignore[reportAttributeAccessIssue]
        return error


def at(index, values):
    """The index, if there is such a value. Raises ValueError."""
    number = int(index)
    if not 0 <= number < len(values):
        raise ValueError("no such value")
    return number


def plain_name(name):
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError("no name")
    return name


def _built_in(name):
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _become(mine, now):
    if isinstance(mine, list | bytearray) and isinstance(now, list | bytearray):
        mine[:] = now
    elif isinstance(mine, set | dict) and type(now) is type(mine):
        mine.clear()
        mine.update(now)
