"""torch's expandable segments: memory of a GPU that another process cannot open in a container.

CUDA IPC of such a segment passes a file handle between processes (pidfd_getfd), for which Docker gives no permission
(torch 2.13, c10/cuda/CUDACachingAllocator.cpp); vLLM and SGLang refuse it around their sleeping pools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Variables in which torch reads the settings of its allocator, oldest name first."""

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
