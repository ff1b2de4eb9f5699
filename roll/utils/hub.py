"""Names of the Hugging Face hub."""

import re

from roll.utils.paths import look_at

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def is_hub_id(name: str) -> bool:
    """True for `name` or `owner/name` that is no path of this machine.

    Example: Qwen/Qwen2.5-7B is an id; ./model, /models/x and output/model (when output/ exists) are paths.
    """
    return _ID.fullmatch(name) is not None and not look_at(name.partition("/")[0]).exists
