"""Messages of many small objects."""

from __future__ import annotations

import pickle
from typing import Any


class _Packed:
    """Pickles as what makes the value of these bytes."""

    def __init__(self, data: bytes):
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._data,)


def packed(value: Any) -> Any:
    """Something that arrives as `value` on the other side of a call of Ray. Ray's own pickler calls Python for every
    object and sends every array apart: hundreds of small ones take it several times as long. For values of classes
    that both sides import, which refer to nothing in the object store. Who unpickles it trusts the sender as far as for
    Ray's own messages."""
    try:
        return _Packed(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    except Exception:  # Ray's own pickler takes more, and tells of what it does not take
        return value
