"""Exchange between the ranks of a role that have different rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext
from roll.models.sequences.ranks import SequenceRanks
from roll.platforms.table import platform_here
from roll.types.batch import MicroBatch


@dataclass(frozen=True)
class RankGroups:
    """`sequence`: the ranks that share every sequence of the same rows; None: each rank is alone with its rows. `data`:
    ranks that have all rows among them, each of them once; None: these are all ranks."""

    sequence: SequenceRanks | None = None
    data: dist.ProcessGroup | None = None

    @classmethod
    def made(cls, role: WorkerConfig, context: RankContext) -> RankGroups:
        """Collective over the role's ranks, whose process group is there."""
        size, timeout = role.model_args.ulysses_size, timedelta(minutes=role.backend_timeout)
        if size == 1:
            return cls()
        ranks = torch.arange(context.world_size).view(-1, size)
        together = [dist.new_group(each, timeout) for each in ranks.tolist()]
        apart = [dist.new_group(each, timeout) for each in ranks.T.tolist()]
        share, place = divmod(context.rank, size)
        sequence_group, others = together[share], apart[place]
        assert isinstance(sequence_group, dist.ProcessGroup) and isinstance(others, dist.ProcessGroup)
        return cls(SequenceRanks(sequence_group, place, size), others)


def all_reduce(
    values: Sequence[float],
    context: RankContext,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
) -> list[float]:
    """Elementwise over all ranks, or those of a group, in float64."""
    if context.world_size == 1:
        return [float(value) for value in values]
    total = torch.tensor(list(values), dtype=torch.float64, device=context.device)
    dist.all_reduce(total, op, group)
    return total.tolist()


def empty_micro_batch() -> MicroBatch:
    """A row with nothing to score: it keeps a sharded model's forward passes in step with the other ranks'."""
    return MicroBatch(
        input_ids=torch.zeros(1, 2, dtype=torch.int64),
        lengths=torch.tensor([2]),
        response_mask=torch.zeros(1, 2, dtype=torch.bool),
        loss_weights=torch.zeros(1),
        rollout_log_probs=torch.zeros(1, 2),
    )


def evened_out(micro_batches: Sequence[MicroBatch], context: RankContext) -> list[MicroBatch]:
    """These, and so many empty ones that all ranks make equally many passes."""
    most = int(all_reduce([len(micro_batches)], context, dist.ReduceOp.MAX)[0])
    return [*micro_batches, *[empty_micro_batch()] * (most - len(micro_batches))]


# torch's random generators of one rank, as a checkpoint holds them.


def draw_apart(seed: int, place: int) -> None:
    """Makes ranks in different places draw different random numbers for dropout. Called once all weights exist, since
    all ranks must draw those alike."""
    torch.manual_seed(seed + place)


def random_state() -> dict[str, Any]:
    platform = platform_here()
    of_devices = {platform.device_type: platform.random_states()} if platform.is_accelerator else {}
    return {"cpu": torch.get_rng_state(), **of_devices}


def set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    platform = platform_here()
    if platform.is_accelerator and (of_devices := state.get(platform.device_type)):
        platform.set_random_states(of_devices)


def random_state_file(directory: Path, rank: int) -> Path:
    return directory / f"random_state_{rank}.pt"
