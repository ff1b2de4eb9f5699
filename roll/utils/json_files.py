"""Reading JSON files that something may have happened to."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from roll.utils.regular_files import open_regular


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a regular file. OSError when there is none that can be read, ValueError when it holds anything
    else, whatever that is."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is no regular file")
    try:
        with open_regular(path) as file:
            value = json.loads(file.read())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds {type(value).__name__}, not an object")
    return value
