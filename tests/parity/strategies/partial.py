"""Exports of what training changes, on all ranks. Module-level functions, because they travel to the ranks."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from roll.distributed.strategy.base import TrainStrategy
from roll.distributed.strategy.deepspeed.rank import DeepSpeedRank
from roll.distributed.strategy.fsdp2 import train as fsdp2_train
from tests.parity.strategies.runs import Run, masters, one_update, trainer

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Exports:
    """Before and after an update: everything, and only what training changes; and how many numbers were gathered for
    the latter."""

    before: Weights
    after: Weights
    part: Weights
    gathered: int


def exports(run: Run) -> Exports:
    with trainer(run) as strategy:
        before = collected(strategy, whole=True)
        one_update(strategy, run)
        numels: list[int] = []
        with counting(numels):
            part = collected(strategy, whole=False)
        return Exports(before, collected(strategy, whole=True), part, sum(numels))


def apart(run: Run) -> tuple[Weights, Weights, int, dict[str, np.ndarray]]:
    """After an update: what is sent first where adapters are not merged, then what is sent later and how many numbers
    were gathered for it; and the adapters as they are."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        numels: list[int] = []
        first = collected(strategy, whole=True, merged=False)
        with counting(numels):
            later = collected(strategy, whole=False, merged=False)
        return first, later, sum(numels), masters(strategy, run)


def collected(strategy: TrainStrategy, whole: bool, merged: bool = True) -> Weights:
    weights: Weights = {}
    for bucket in strategy.export_weights(1 << 16, whole=whole, merged=merged):
        weights |= {name: tensor.float().cpu().numpy().copy() for name, tensor in bucket}
    return weights


def counting(numels: list[int]) -> ExitStack:
    """Inside, sizes of the parameters that are made whole."""
    gathered, whole = DeepSpeedRank.gathered, fsdp2_train.whole_weight

    def gathered_counted(rank: DeepSpeedRank, parameters: Any, modify: bool = True) -> Any:
        numels.extend(getattr(parameter, "ds_numel", parameter.numel()) for parameter in parameters)
        return gathered(rank, parameters, modify)

    def whole_counted(shard: Any, dtype: Any) -> Any:
        numels.append(shard.numel())
        return whole(shard, dtype)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(DeepSpeedRank, "gathered", gathered_counted))
    stack.enter_context(mock.patch.object(fsdp2_train, "whole_weight", whole_counted))
    return stack
