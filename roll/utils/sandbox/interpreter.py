"""The interpreter of the run, as a job in the sandbox has it: with its standard library."""

from __future__ import annotations

import os
import sys


def own_python() -> tuple[str, tuple[str, ...]]:
    """The interpreter, and what of the machine it has to see: itself and its libraries, not what stands beside them,
    such as conda's other environments."""
    real, base = os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)
    libraries = (f"{base}/{name}" for name in ("lib", sys.platlibdir))
    return real, tuple(dict.fromkeys(path for path in (*libraries, real) if os.path.exists(path)))
