"""Names of an answer that nobody gave, with which a file of tests is tried before an answer is judged by it.

Whoever uses a `Stub` has touched the answer, and gets no further. What passes all the same tests nothing, and what
fails before it touches the answer fails for every answer. Stubs also stand for what an answer does not define.

A `Whatever` can be called and gives nonsense. What passes whatever the nonsense is accepts every result.
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


MOST_USES = 1000  # of one kind: a loop of the tests may wait for what never comes, and sleep in between


class Whatever:
    """A name of an answer that returns nonsense: another one of its kind, or `result` where one is passed. `agrees`:
    what comparisons say, `is_true`: whether it counts as true. What a test raises that `refusals` do not hold says
    nothing: it needs another kind of result, of which it may accept every one."""

    __slots__ = ("_kind",)

    def __init__(self, is_true, agrees, *result, refusals=BaseException, check=None):
        object.__setattr__(self, "_kind", Kind(is_true, agrees, result, refusals))
        self._kind.name, self._kind.check = self, check

    def __call__(self, *arguments, **keywords):
        self._kind.count()
        if self._kind.check and self is self._kind.name:
            self._kind.check((*arguments, *keywords.values()))
        return self._kind.result[0] if self._kind.result else another(self)

    def __getattr__(self, name):
        if name == "_kind" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return another(self)

    def __setattr__(self, name, value): ...

    def __delattr__(self, name): ...

    def __bool__(self):
        self._kind.count()
        return self._kind.is_true

    def __ne__(self, other):
        return not agrees(self, other)

    def __hash__(self):
        return 0

    def __iter__(self):
        return iter((another(self),))

    def __next__(self):
        raise StopIteration

    def __len__(self):
        self._kind.count()
        return 1

    def __exit__(self, *error):
        return None

    def __await__(self):
        return another(self)
        yield

    def __setitem__(self, key, value): ...

    def __delitem__(self, key): ...


class Kind:
    """Answers that objects of one kind have in common."""

    def __init__(self, is_true, agrees, result, refusals):
        self.is_true, self.agrees, self.result, self.refusals = is_true, agrees, result, refusals
        self.name, self.check = None, None
        self.uses = 0

    def count(self):
        self.uses += 1
        if self.uses > MOST_USES:
            raise Absent("used without an end")


def another(whatever, *arguments):
    whatever._kind.count()
    made = object.__new__(Whatever)
    object.__setattr__(made, "_kind", whatever._kind)
    return made


def nothing(whatever, kind):
    whatever._kind.count()
    return kind(0)


def agrees(whatever, other):
    whatever._kind.count()
    return whatever._kind.agrees


for _name in ARITHMETIC.split():
    setattr(Whatever, f"__{_name}__", another)
    setattr(Whatever, f"__r{_name}__", another)
for _name in ("getitem", "neg", "pos", "abs", "invert", "round", "floor", "ceil", "trunc", "enter", "copy", "deepcopy"):
    setattr(Whatever, f"__{_name}__", another)
for _name in ("eq", "lt", "le", "gt", "ge", "contains", "instancecheck", "subclasscheck"):
    setattr(Whatever, f"__{_name}__", agrees)
for _name, _type in {"int": int, "index": int, "float": float, "complex": complex}.items():
    setattr(Whatever, f"__{_name}__", lambda self, kind=_type: nothing(self, kind))


def whatevers(check=None):
    """Answers of which no two would pass a test that looks at results. `check`: gets what the tests call the first
    with, as far as they call it by its name."""
    unlike = (Whatever(False, False, check=check), Whatever(True, False), Whatever(True, True))
    return (*unlike, Whatever(True, False, None, refusals=AssertionError))
