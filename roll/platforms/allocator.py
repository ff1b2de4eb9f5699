"""torch's expandable segments: memory of a GPU that another process cannot open in a container.

CUDA IPC of such a segment passes a file handle between processes (pidfd_getfd), for which Docker gives no permission
(torch 2.13, c10/cuda/CUDACachingAllocator.cpp); vLLM and SGLang refuse it around their sleeping pools, and so does
vLLM-Ascend.
"""

import re
from collections.abc import Mapping, MutableMapping

from roll.platforms.table import ACCELERATORS

VARIABLES = tuple(dict.fromkeys(name for platform in ACCELERATORS for name in platform.allocator_variables))
"""Variables in which torch reads the settings of its allocator, on whatever platform."""

_SWITCHED_ON = re.compile(r"(?:^|,)\s*expandable_segments\s*:\s*True\s*(?=,|$)", re.IGNORECASE)


def expandable(variables: Mapping[str, str]) -> list[str]:
    """The variables that ask for expandable segments."""
    return [name for name in VARIABLES if _SWITCHED_ON.search(variables.get(name, ""))]


def clear_expandable(variables: MutableMapping[str, str]) -> list[str]:
    """Takes the flag out of them in place, keeps their other settings, and returns which had it.

    Example: "expandable_segments:True,max_split_size_mb:512" becomes "max_split_size_mb:512".
    """
    names = expandable(variables)
    for name in names:
        if rest := _SWITCHED_ON.sub("", variables[name]).strip(" ,"):
            variables[name] = rest
        else:
            del variables[name]
    return names
