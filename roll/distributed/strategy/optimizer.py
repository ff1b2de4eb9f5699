"""What every training backend agrees on: which parameters decay, and how the learning rate moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from roll.configs.sections.training import EIGHT_BIT, TrainingArgs
from roll.distributed.strategy.eight_bit import adamw_8bit
from roll.distributed.strategy.muon import Muon
from roll.errors import StrategyError
from roll.models.hf import LogProbHead, ValueHead


def parameter_groups(
    parameters: Iterable[tuple[nn.Parameter, int]], weight_decay: float, one_group: bool = False
) -> list[dict[str, Any]]:
    """Optimizer groups of the trainable ones among (parameter, number of dimensions).

    Weight decay reaches matrices only: norms and biases (one dimension) are left alone, because pulling them to zero
    does not make a model simpler. The groups are two without weight decay as well, because it may come with a resume,
    and backends that flatten groups save them so. `one_group`, without weight decay only: all in one.
    """
    trainable = [(parameter, dimensions) for parameter, dimensions in parameters if parameter.requires_grad]
    if one_group:
        return [{"params": [parameter for parameter, _ in trainable], "weight_decay": 0.0}]
    decayed = [parameter for parameter, dimensions in trainable if dimensions > 1]
    others = [parameter for parameter, dimensions in trainable if dimensions <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def optimizer_of(
    module: nn.Module, args: TrainingArgs, dimensions: Callable[[nn.Parameter], int], one_group: bool = False
) -> torch.optim.Optimizer:
    """What `optim` names, over what a model trains. `dimensions`: of a whole parameter."""
    parameters = list(module.parameters())
    if args.optim == "adamw_torch":
        return adamw(parameter_groups(((p, dimensions(p)) for p in parameters), args.weight_decay, one_group), args)
    if args.optim == EIGHT_BIT:
        groups = parameter_groups(((p, dimensions(p)) for p in parameters), args.weight_decay, one_group)
        return adamw_8bit(groups, **_rates(args))
    ends = [m for m in module.modules() if isinstance(m, nn.Embedding | LogProbHead | ValueHead)]
    apart = {id(parameter) for end in ends for parameter in end.parameters()}
    matrices = [p for p in parameters if id(p) not in apart and p.dim() > 1 and min(p.shape[-2:]) > 1]
    taken = {id(matrix) for matrix in matrices}
    groups = parameter_groups(((p, p.dim()) for p in parameters if id(p) not in taken), args.weight_decay)
    trained = [matrix for matrix in matrices if matrix.requires_grad]
    first = [{"params": trained, "weight_decay": args.weight_decay, "muon": True}] if trained else []
    return Muon(first + groups, args.muon_momentum, **_adamw_settings(args))


def adamw(groups: list[dict[str, Any]], args: TrainingArgs) -> torch.optim.AdamW:
    """AdamW with torch's fused kernel, on the CPU as on GPUs."""
    return torch.optim.AdamW(groups, **_adamw_settings(args))


def _adamw_settings(args: TrainingArgs) -> dict[str, Any]:
    return {**_rates(args), "fused": True}


def _rates(args: TrainingArgs) -> dict[str, Any]:
    return {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}


def learning_rate_factor(
    shape: str, update: int, total_updates: int, warmup_updates: int, min_ratio: float = 0.0
) -> float:
    """Share of the peak learning rate at the `update`-th update (from 0).

    It rises in a line over `warmup_updates` and reaches the peak with the update after them, then stays ("constant"),
    or falls to `min_ratio` at `total_updates` in a line ("linear") or a half cosine ("cosine"). With min_ratio 0, and
    from the peak on, these are the schedules of transformers.get_scheduler, whose warm-up begins with an update at rate
    0: here that would waste the rollouts of a step.

    Example: linear, 10 updates, 2 of warm-up: .333, .667, 1, .875, .75, ..., .125.
    """
    if update < warmup_updates:
        return (update + 1) / (warmup_updates + 1)
    if shape.startswith("constant"):
        return 1.0
    done = min(1.0, (update - warmup_updates) / max(1, total_updates - warmup_updates))
    remaining = 1 - done if shape == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return min_ratio + (1 - min_ratio) * remaining


def schedule(optimizer: torch.optim.Optimizer, args: TrainingArgs, total_updates: int, warmup_updates: int) -> LambdaLR:
    """The learning-rate schedule of a role, to be stepped once per update."""
    min_ratio = float(args.lr_scheduler_kwargs.get("min_lr_ratio", 0.0))
    return LambdaLR(
        optimizer,
        lambda update: learning_rate_factor(args.lr_scheduler_type, update, total_updates, warmup_updates, min_ratio),
    )


def go_on_after(schedule: LambdaLR, updates_done: int) -> None:
    """Puts a schedule behind so many updates, under the peak rates that it has."""
    schedule.last_epoch = updates_done
    rates = [rate * factor(updates_done) for rate, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule._last_lr = rates


def not_finite(role: str, norm: float, weights: str = "untouched") -> StrategyError:
    """The end of a run whose gradient is not finite. One such update would make every weight NaN for good, and to leave
    it out silently would hide a fault in loss, data or model."""
    return StrategyError(
        f"{role}: the gradient is not finite (norm {norm:g}); the weights are {weights}. Resume from the newest "
        "checkpoint with a lower learning_rate, a lower max_grad_norm or rewards on a smaller scale, and check the "
        "rewards, actor/ratio_max and train_infer/log_prob_diff_max of the last steps."
    )
