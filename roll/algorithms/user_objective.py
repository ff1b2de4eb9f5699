"""A policy objective of the user's own: built from pg_args, called, and a look at what it returns."""

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from pydantic import BaseModel, PydanticSchemaGenerationError, TypeAdapter

from roll.algorithms.objectives import Objective, PolicyTokens
from roll.algorithms.user_code import call_user
from roll.errors import AlgorithmError
from roll.types.metrics import MetricSums, Number
from roll.utils.imports import resolve

TAKEN = frozenset({
    "advantage_abs_mean", "advantage_clip_fraction", "advantage_max", "advantage_mean", "approx_kl", "clip_fraction",
    "clip_high_fraction", "clip_low_fraction", "covariance_fraction", "dual_clip_fraction", "entropy_mean",
    "expert_epochs", "expert_loss", "expert_nll_mean", "expert_rows", "expert_token_weight_mean", "expert_tokens",
    "expert_weight", "grad_norm", "is_weight_clip_fraction", "is_weight_mean", "kl_coef", "kl_loss", "kl_mean",
    "learning_rate", "masked_stale_fraction", "mismatch_kept_fraction", "moe_aux_loss", "mtp_loss", "nll_mean",
    "num_updates", "pg_loss", "prefix_sharing_factor", "ratio_max", "ratio_mean", "ratio_penalty_mean", "return_mean",
    "second_moment_mean", "settled_fraction", "skipped_fraction", "skipped_updates", "soft_gate_mean",
    "teacher_kl_mean", "token_reward_clip_fraction", "train_infer_log_prob_diff_max",
    "train_infer_log_prob_diff_mean",
})  # fmt: skip
"""Metrics of the actor that mean something already."""


def build_objective(path: str, args: Mapping[str, Any]) -> Objective:
    """An object of the class. The fields of a dataclass and of a pydantic model are checked: what is wrong with them
    raises pydantic's ValidationError; what the class itself raises comes through."""
    objective = cast(Any, resolve(path))
    if _has_fields(objective):
        try:
            return TypeAdapter(objective).validate_python(dict(args))
        except PydanticSchemaGenerationError:  # a field of a type that pydantic does not know
            pass
    return objective(**args)


def _has_fields(objective: object) -> bool:
    return is_dataclass(objective) or (isinstance(objective, type) and issubclass(objective, BaseModel))


@dataclass(frozen=True)
class UserObjective:
    """Calls the class under `path`, which is imported where it is called. Raises AlgorithmError for anything but the
    loss of each token."""

    path: str
    args: Mapping[str, Any]

    @cached_property
    def _objective(self) -> Objective:
        return build_objective(self.path, self.args)

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        name, mask = f"pg_variant: {self.path}", tokens.mask
        reported = MetricSums()
        losses = call_user(name, self._objective, tokens, reported)
        metrics.merge([_checked(name, reported)])
        if not isinstance(losses, torch.Tensor) or losses.shape != mask.shape:
            got = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, torch.Tensor) else _one_line(losses)
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


def _checked(owner: str, reported: MetricSums) -> MetricSums:
    """The metrics without their gradients. Raises AlgorithmError for a name that is taken, and for more than one
    number."""
    if taken := sorted(TAKEN & {*reported.means, *reported.maxima}):
        raise AlgorithmError(f"{owner} reports {taken[0]}, which is a metric of every run. Give it another name.")
    if both := sorted(reported.means.keys() & reported.maxima):
        raise AlgorithmError(f"{owner} reports {both[0]} both as a mean and as a maximum. Give one another name.")
    means = {
        key: (_number(owner, key, total), _number(owner, key, count)) for key, (total, count) in reported.means.items()
    }
    return MetricSums(means, {key: _number(owner, key, value) for key, value in reported.maxima.items()})


def _number(owner: str, key: str, value: object) -> Number:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.detach().reshape(())
    if isinstance(value, int | float | np.number | np.bool_):
        return float(value)
    got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else _one_line(value)
    raise AlgorithmError(f"{owner} reports the metric {key} with {got}. It takes single numbers: sum over the tokens.")


def _one_line(value: object) -> str:
    return " ".join(repr(value).split())[:80]
