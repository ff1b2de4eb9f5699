"""Names of an answer that nobody gave: whoever uses one has touched the answer, and gets no further.

With them a file of tests is tried before an answer is judged by it. What passes all the same tests nothing, and what
fails before it touches the answer fails for every answer. They also stand for what an answer does not define.
"""


class Absent(BaseException):
    """Somebody used the answer. No `except Exception` of the tests catches it."""


class Stub:
    """A name of the answer. `touched` is a list that grows with every use."""

    __slots__ = ("_touched",)

    def __init__(self, touched):
        object.__setattr__(self, "_touched", touched)


def _use(self, *arguments, **keywords):
    object.__getattribute__(self, "_touched").append(True)
    raise Absent("the answer does not define it")


ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift divmod"
OTHERS = """
getattribute setattr delattr call eq ne lt le gt ge hash bool str repr bytes format len iter next reversed contains
getitem setitem delitem int float complex index neg pos abs invert round floor ceil trunc enter exit await aiter anext
aenter aexit instancecheck subclasscheck mro_entries fspath dir length_hint copy deepcopy reduce reduce_ex
"""
for _name in OTHERS.split():
    setattr(Stub, f"__{_name}__", _use)
for _name in ARITHMETIC.split():
    setattr(Stub, f"__{_name}__", _use)
    setattr(Stub, f"__r{_name}__", _use)
