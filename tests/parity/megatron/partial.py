"""Exports of what training changes, on all ranks of Megatron. A module-level function, because it travels there."""

from __future__ import annotations

from unittest import mock

import numpy as np
import torch.distributed as dist

from tests.parity.megatron.ranks import Run, exported, one_update, trainer

Weights = dict[str, np.ndarray]


def exports(run: Run) -> tuple[Weights, Weights, int]:
    """After an update everything, and only what training changes; and how many numbers this rank sent or received for
    the latter."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        numel = 0
        exchange = dist.batch_isend_irecv

        def counted(transfers: list[dist.P2POp]) -> list[dist.Work]:
            nonlocal numel
            numel += sum(transfer.tensor.numel() for transfer in transfers)
            return exchange(transfers)

        with mock.patch.object(dist, "batch_isend_irecv", counted):
            part: Weights = {}
            for bucket in strategy.export_weights(1 << 16, whole=False):
                part |= {name: tensor.float().numpy().copy() for name, tensor in bucket}
        return exported(strategy), part, numel
