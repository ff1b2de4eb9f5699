"""Functions and classes that exist in a running program only: in a script, in a notebook, or inside another function.
They get a name that `resolve` finds, in this process and in the workers of its run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULE = "roll_script"  # a module without a file


def set_script_code(objects: Mapping[str, object]) -> None:
    """Lets `resolve("roll_script:NAME")` find the objects, and none of those that were set before."""
    if not objects:
        sys.modules.pop(MODULE, None)
        return
    module = ModuleType(MODULE, __doc__)
    module.__spec__ = ModuleSpec(MODULE, None)
    vars(module).update(objects)
    sys.modules[MODULE] = module


def script_code() -> dict[str, object]:
    """Return the values that are set, for processes that this one starts."""
    module = sys.modules.get(MODULE)
    return {name: value for name, value in vars(module).items() if not name.startswith("__")} if module else {}


@contextmanager
def with_script_code(objects: Mapping[str, object]) -> Iterator[None]:
    """Sets the objects for a while."""
    before = script_code()
    set_script_code(objects)
    try:
        yield
    finally:
        set_script_code(before)
