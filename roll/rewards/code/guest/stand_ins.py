"""Objects of the answer, as the tests see them.

A comparison or a sum of such an object and plain data is refused: asking the answer's class for it would hand it the
expected value, or let it decide. Between two objects of the answer it is asked.
"""

from wire import HeldObject

FORWARDED = (
    "len iter next reversed str repr bool int float complex index hash neg pos abs invert round floor ceil trunc enter "
    "exit getitem setitem delitem aiter anext aenter aexit"
)
EQUALITY = {"eq": False, "ne": True}
OPERATORS = "lt le gt ge add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"


class Remote(HeldObject):
    """One object over there; there is one stand-in for each."""

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
        if type(value) is Remote:
            return self._peer.operate(self._number, "isinstance", (value,)) is True
        return self._peer.class_number(type(value)) == self._number

    def __subclasscheck__(self, value):
        return type(value) is Remote and self._peer.operate(self._number, "issubclass", (value,)) is True

    def __copy__(self):
        return self._peer.stand_in("copy", self._number, False)

    def __deepcopy__(self, memo):
        return self._peer.stand_in("copy", self._number, True)

    @property
    def __signature__(self):
        return self._peer.signature(self._number)

    @property
    def __doc__(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._peer.ask("get", self._number, "__doc__")


def _forwarded(name):
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


for _make, _names in ((_forwarded, FORWARDED), (_operator, OPERATORS)):
    for _name in _names.split():
        setattr(Remote, f"__{_name}__", _make(f"__{_name}__"))
for _name, _otherwise in EQUALITY.items():
    setattr(Remote, f"__{_name}__", _equality(f"__{_name}__", _otherwise))


class TypeOfTests:
    """Stand-in for `type` in the tests: for a stand-in it returns the class of its object. Never one of Python's,
    whatever the other side says."""

    def __call__(self, *arguments, **keywords):
        if len(arguments) == 1 and type(arguments[0]) is Remote:
            return arguments[0]._peer.stand_in("type", arguments[0]._number)
        return type(*arguments, **keywords)

    def __instancecheck__(self, value):
        return (
            value._peer.ask("is", value._number, "class") is True if type(value) is Remote else isinstance(value, type)
        )

    def __subclasscheck__(self, value):
        return issubclass(value, type)

    def __mro_entries__(self, bases):
        return (type,)

    def __getattr__(self, name):
        return getattr(type, name)

    def __getitem__(self, item):
        return type[item]

    def __eq__(self, other):
        return other is self or other is type

    def __hash__(self):
        return hash(type)


def callable_of_tests(value):
    return value._peer.ask("is", value._number, "callable") is True if type(value) is Remote else callable(value)


BUILT_IN = {"type": TypeOfTests(), "callable": callable_of_tests}
"""Built-in names of the tests that know stand-ins."""
