"""Names of the Hugging Face hub."""

import os
import re
from difflib import get_close_matches

from roll.utils.files import look_at

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def folder_hint(name: str) -> str:
    """A sentence with the folders here whose names are near, or nothing."""
    try:
        folders = [entry.name for entry in os.scandir() if entry.is_dir()]
    except OSError:
        return ""
    near = get_close_matches(name, folders, n=3, cutoff=0.6)
    return f" Did you mean the folder {' or '.join(f'./{each}' for each in near)}?" if near else ""


def is_hub_id(name: str) -> bool:
    """True for `name` or `owner/name` that is no path of this machine.

    Example: Qwen/Qwen2.5-7B is an id; ./model, /models/x and output/model (when output/ exists) are paths.
    """
    return _ID.fullmatch(name) is not None and not look_at(name.partition("/")[0]).exists
