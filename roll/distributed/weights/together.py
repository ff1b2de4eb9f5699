"""Which weights go together when not all of them are sent."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_BLOCK = re.compile(r"(?P<block>.+?\.\d+\.[^.]+)\.(?P<rest>.+)")
_MODULE_OF_ITS_OWN = re.compile(r"(o_proj|down_proj|[^.]*norm)\.[^.]+")


def with_partners(names: Iterable[str], changed: Collection[str]) -> set[str]:
    """The `names` (Hugging Face's) that changed, and those that an engine may fuse with one of them. Engines fuse q, k
    and v, gate and up, and a layer's experts; a fused weight can only be rebuilt from all its parts.

    Example: model.layers.0.self_attn.q_proj.weight brings the biases and matrices of k_proj and v_proj along, but
    neither o_proj nor another layer.
    """
    groups = {_group(name) for name in changed}
    return {name for name in names if _group(name) in groups}


def _group(name: str) -> str:
    """A block of a numbered layer, but for its modules that no engine fuses; elsewhere a module."""
    match = _BLOCK.fullmatch(name)
    if match is None or _MODULE_OF_ITS_OWN.fullmatch(match["rest"]):
        return name.rpartition(".")[0]
    return match["block"]
