"""Exports of what training changes, on all ranks of Megatron. A module-level function, because it travels there."""

from __future__ import annotations

import numpy as np
import torch

from tests.parity.megatron.ranks import Run, exported, one_update, trainer

Weights = dict[str, np.ndarray]


def exports(run: Run) -> tuple[Weights, Weights, int]:
    """After an update everything, and only what training changes; and how many numbers this rank sent or received for
    the latter."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        numel = 0
        isend, irecv = torch.distributed.isend, torch.distributed.irecv

        def counted(call):  # type: ignore[no-untyped-def]
            def travel(tensor: torch.Tensor, rank: int):  # type: ignore[no-untyped-def]
                nonlocal numel
                numel += tensor.numel()
                return call(tensor, rank)

            return travel

        torch.distributed.isend, torch.distributed.irecv = counted(isend), counted(irecv)
        try:
            part: Weights = {}
            for bucket in strategy.export_weights(1 << 16, whole=False):
                part |= {name: tensor.float().numpy().copy() for name, tensor in bucket}
        finally:
            torch.distributed.isend, torch.distributed.irecv = isend, irecv
        return exported(strategy), part, numel
