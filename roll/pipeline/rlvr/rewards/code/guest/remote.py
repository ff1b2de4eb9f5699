"""Objects of the answer, as the tests see them.

A comparison or a sum of such an object and plain data is refused: asking the answer's class for it would hand it the
expected value, or let it decide. Between two objects of the answer it is asked.
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


class Peer:
    """The other process."""

    def __init__(self, channel):
        self._channel = channel
        self._functions = []
        self._exceptions = {}
        self.is_gone = False

    def names(self):
        """What the answer defines. An exception class of it is one here too, so that tests can catch it."""
        found = {}
        for name, message, bases in self._answer("names"):
            found[name] = self._value(message) if bases is None else self._exception(name, bases)
        return found

    def begin(self):
        if not self.is_gone:
            self._answer("begin")

    def ask(self, *request):
        return self._value(self._answer(*request)[0])

    def operate(self, number, name, arguments):
        return self.ask("operate", number, name, [self.plain(argument) for argument in arguments])

    def call(self, number, arguments, keywords):
        """Lists, sets and mappings that the function changed are changed here as well."""
        named = {name: self.plain(value) for name, value in keywords.items()}
        result, changed = self._answer("call", number, [self.plain(argument) for argument in arguments], named)
        for index, message in changed.items():
            _become(arguments[int(index)], self._value(message))
        return self._value(result)

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

    def _find(self, mark, number=-1):
        if mark == "undefined":
            return NotImplemented
        return Remote(self, int(number)) if mark == "object" else self._functions[number]

    def _answer(self, *request):
        """The values of the reply. On the way there the other side may call functions that it was given."""
        try:
            self._channel.send(request)
            while True:
                kind, *values = self._channel.receive()
                if kind == "ok":
                    return values
                if kind == "raise":
                    raise self._error(*values)
                self._channel.send(self._called_back(*values))
        except Gone:
            self.is_gone = True
            raise

    def _called_back(self, number, arguments):
        try:
            return ["ok", self.plain(self._functions[number](*map(self._value, arguments)))]
        except Exception as error:
            return ["raise", type(error).__name__, str(error)]

    def _exception(self, name, bases):
        base = next(found for found in map(_built_in, bases) if found is not None)
        self._exceptions[name] = type(name, (base,), {})
        return self._exceptions[name]

    def _error(self, bases, text):
        for name in bases:
            kind = self._exceptions.get(name) or _built_in(name)
            if kind is not None:
                try:
                    return kind(text)
                except TypeError:  # one that wants more, as UnicodeDecodeError
                    continue
        return RuntimeError(text)


def _built_in(name):
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _become(mine, now):
    if isinstance(mine, list | bytearray) and isinstance(now, list | bytearray):
        mine[:] = now
    elif isinstance(mine, set | dict) and type(now) is type(mine):
        mine.clear()
        mine.update(now)
