"""A policy objective of the user's own: built from pg_args, called, and a look at what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from typing import Any, cast

import torch
from pydantic import BaseModel, PydanticSchemaGenerationError, TypeAdapter

from roll.algorithms.objectives import Objective, PolicyTokens
from roll.algorithms.own_code import call_own
from roll.errors import AlgorithmError
from roll.types.metrics import MetricSums
from roll.utils.imports import resolve


def build_objective(path: str, args: Mapping[str, Any]) -> Objective:
    """An object of the class. The fields of a dataclass and of a pydantic model are checked: what is wrong with them
    raises pydantic's ValidationError; what the class itself raises comes through."""
    found = cast(Any, resolve(path))
    if _has_fields(found):
        try:
            return TypeAdapter(found).validate_python(dict(args))
        except PydanticSchemaGenerationError:  # a field of a type that pydantic does not know
            pass
    return found(**args)


def _has_fields(found: object) -> bool:
    return is_dataclass(found) or (isinstance(found, type) and issubclass(found, BaseModel))


@dataclass(frozen=True)
class OwnObjective:
    """Calls the class under `path`, which is imported where it is called. Raises AlgorithmError for anything but the
    loss of each token."""

    path: str
    args: Mapping[str, Any]

    @cached_property
    def _objective(self) -> Objective:
        return build_objective(self.path, self.args)

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        name, mask = f"pg_variant: {self.path}", tokens.mask
        losses = call_own(name, self._objective, tokens, metrics)
        if not isinstance(losses, torch.Tensor) or losses.shape != mask.shape:
            got = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, torch.Tensor) else f"{losses!r:.80}"
            raise AlgorithmError(
                f"{name} returned {got} for tokens of shape {tuple(mask.shape)}. It must return the loss of each token."
            )
        if tokens.log_probs.requires_grad and not losses.requires_grad:
            raise AlgorithmError(
                f"{name} returned losses without a gradient. They must depend on tokens.log_probs or tokens.log_ratio, "
                "without detach() or numpy on the way."
            )
        sound = mask & tokens.log_probs.isfinite() & tokens.log_ratio.isfinite() & tokens.advantages.isfinite()
        bad = (sound & ~losses.isfinite()).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            raise AlgorithmError(
                f"{name} returned {losses[row, column].item()} for {len(bad)} of {int(mask.sum())} tokens, first for "
                f"the log-prob {tokens.log_probs[row, column].item():g}, the log ratio "
                f"{tokens.log_ratio[row, column].item():g} and the advantage {tokens.advantages[row, column].item():g}."
            )
        return torch.where(mask, losses, 0.0)
