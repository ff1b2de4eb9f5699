"""An attribute of what is not ours, replaced for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Inside, `owner.name` is `value`. Afterwards it is as before, also where `owner` had only inherited it."""
    before = vars(owner).get(name, _INHERITED)
    getattr(owner, name)  # a name that is not there is a mistake
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


_INHERITED = object()
