"""Weights that SGLang loads only together: held back until their partners are there. No SGLang here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch

# Projections of latent attention (DeepSeek's, GLM's, LongCat's ...) that SGLang joins into one weight: it looks for the
# partners in the call that brings the first of them, and drops what came alone without a word.
_FUSED = re.compile(r"(?P<module>.+)\.(q_a_proj|kv_a_proj_with_mqa|g_proj|indexer\.(wk|weights_proj))\.(?P<kind>[^.]+)")


class FusedWeights:
    """Passes weights on, but those of one attention module that belong together only once all of them have come.

    Example: of a, layers.0.self_attn.q_a_proj.weight | layers.0.self_attn.kv_a_proj_with_mqa.weight (two buckets), a
    passes with the first, the two others with the second.
    """

    def __init__(self, expected: Iterable[str] | None):
        """`expected`: names of all weights of the model; None if nobody knows them: then partners pass at the end."""
        self._partners: dict[str, set[str]] | None = None
        if expected is not None:
            self._partners = {}
            for name in expected:
                if group := _group(name):
                    self._partners.setdefault(group, set()).add(name)
        self._held: dict[str, dict[str, torch.Tensor]] = {}

    def pass_on(self, weights: Mapping[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
        """What can be loaded now. What is held back is copied: the source is overwritten by the next bucket."""
        ready: list[tuple[str, torch.Tensor]] = []
        arrived: set[str] = set()
        for name, tensor in weights.items():
            group = _group(name)
            if group is None:
                ready.append((name, tensor))
            else:
                self._held.setdefault(group, {})[name] = tensor
                arrived.add(group)
        for group in arrived:
            if self._partners is not None and self._partners.get(group, set()) <= self._held[group].keys():
                ready += self._held.pop(group).items()
            else:
                held = self._held[group]
                held.update({name: held[name].clone() for name in held.keys() & weights.keys()})
        return ready

    def rest(self) -> list[tuple[str, torch.Tensor]]:
        """What waits for partners that did not come, at the end of an update."""
        held, self._held = self._held, {}
        return [pair for group in held.values() for pair in group.items()]


def _group(name: str) -> str | None:
    """Weights, biases and scales are joined each by themselves."""
    match = _FUSED.fullmatch(name)
    return f"{match['module']} {match['kind']}" if match else None
