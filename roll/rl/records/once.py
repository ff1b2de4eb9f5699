"""A call that is made once."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Makes the call when it is called first, and gives the same result ever after. What the call needs is let go of
    with it."""

    def __init__(self, call: Callable[[], T]):
        self._call: Callable[[], T] | None = call
        self._result: list[T] = []

    def __call__(self) -> T:
        if self._call is not None:
            self._result.append(self._call())
            self._call = None
        return self._result[0]
