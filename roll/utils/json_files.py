"""Reading JSON files that something may have happened to."""

import json
import os
import stat
from pathlib import Path
from typing import Any


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a regular file. OSError when there is none that can be read, ValueError when it holds anything
    else, whatever that is."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would never answer
        raise ValueError("it is no regular file")
    try:
        value = json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds {type(value).__name__}, not an object")
    return value
