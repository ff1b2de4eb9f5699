"""Conversion of what user code records to values that JSON can hold."""

import math
from collections.abc import Mapping
from typing import Any

from roll.utils.text import middle_left_out, storable

NOT_RECORDED = "(not recorded: "
"""How the text begins that stands where a value could not be kept."""

_MAX_DEPTH = 16
_MAX_VALUES = 1_000
_MAX_CHARACTERS = 8_000
_MAX_INTEGER_BITS = 4_096


def plain_fields(fields: object) -> dict[str, Any]:
    """A mapping of user code with each value in JSON's own types: numpy and torch values become numbers and lists, NaN
    and infinities None, other objects their text, cut in the middle. A text says why a value is not kept: {"y": {(1,
    2): 3}} -> {"y": "(not recorded: a key is a tuple)"}."""
    try:
        items = list(fields.items()) if isinstance(fields, Mapping) else [("extra", fields)]
    except Exception as error:
        return {"extra": _refusal(error)}
    return {str(_plain_field(name)): _plain_field(value) for name, value in items[:_MAX_VALUES]}


def _plain_field(value: object) -> Any:
    if type(value) is str:  # as names are
        return _text(value)
    try:
        return _Copy().of(value, ())
    except Exception as error:  # anything: it is the user's object that answers
        return _refusal(error)


def _refusal(error: Exception) -> str:
    reason = str(error) if isinstance(error, _NotPlainError) else f"{type(error).__name__} when it was looked at"
    return f"{NOT_RECORDED}{reason})"


def _text(value: object) -> str:
    return middle_left_out(storable(str(value)), _MAX_CHARACTERS)


class _NotPlainError(Exception):
    """Why a value is not kept."""


class _Copy:
    """One value on its way; counts what it holds."""

    def __init__(self) -> None:
        self._num_values = 0

    def of(self, value: Any, inside: tuple[int, ...]) -> Any:
        """The value in JSON's types. `inside`: ids of what it lies in."""
        self._count(1)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, int):
            if value.bit_length() > _MAX_INTEGER_BITS:
                raise _NotPlainError(f"an integer of {value.bit_length()} bits")
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else None
        if id(value) in inside:
            raise _NotPlainError("it refers to itself")
        if len(inside) == _MAX_DEPTH:
            raise _NotPlainError(f"nested more than {_MAX_DEPTH} deep")
        inside = (*inside, id(value))
        if isinstance(value, Mapping):
            return {self._key(key): self.of(child, inside) for key, child in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.of(child, inside) for child in value]
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple) and callable(getattr(value, "tolist", None)):  # of numpy or torch
            self._count(math.prod(shape) - 1)
            return self.of(value.tolist(), inside)
        return _text(value)

    def _key(self, key: object) -> str:
        if isinstance(key, str):
            return _text(key)
        if key is None or isinstance(key, bool | int | float):
            return str(key)
        raise _NotPlainError(f"a key is a {type(key).__name__}")

    def _count(self, num_values: int) -> None:
        self._num_values += num_values
        if self._num_values > _MAX_VALUES:
            raise _NotPlainError(f"it holds more than {_MAX_VALUES} values")
