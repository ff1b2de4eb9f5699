"""The state of a trainer in the files of torch.distributed.checkpoint: by the parameters' names, under any number of
ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from roll.distributed.strategy.eight_bit import OfShards
from roll.distributed.strategy.fsdp2.rank import Fsdp2Rank, local
from roll.distributed.strategy.fsdp2.update import Updater
from roll.distributed.strategy.optimizer import go_on_after
from roll.distributed.strategy.random_state import random_state, random_state_file, set_random_state
from roll.distributed.strategy.saved_facts import SavedFacts
from roll.models.weight_files import OneByOne, PlainReader

_FOLDER = "shards"
_MOMENTS, _MOMENTUM, _STEPS, _UPDATES = ("exp_avg", "exp_avg_sq"), "momentum_buffer", "step", "updates_done"


def save(directory: Path, rank: Fsdp2Rank, updater: Updater, fixed: dict[str, object]) -> None:
    """Weights, optimizer, place in the schedule and random state. Collective; `directory` is seen by all ranks."""
    target, context, optimizer = directory / _FOLDER, rank.context, updater.optimizer
    if context.rank == 0:
        target.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    with updater.moments_at_work():
        state: dict[str, torch.Tensor] = {f"model.{n}": shard.detach() for n, shard in _saved(rank, updater).items()}
        for name, shard in updater.trained.items():
            if not isinstance(optimizer, OfShards):
                state |= {f"{key}.{name}": value for key, value in optimizer.state.get(shard, {}).items()}
        state[_UPDATES] = torch.tensor(updater.schedule.last_epoch)
        state_dict_saver.save(state, storage_writer=OneByOne(target))
        if isinstance(optimizer, OfShards):
            own = {name: optimizer.saved(shard) for name, shard in updater.trained.items()}
            torch.save(own, _own_moments(directory, context.rank))
    torch.save(random_state(), random_state_file(directory, context.rank))
    if context.rank == 0:
        SavedFacts(fixed, _layout(rank)).write(directory)
    dist.barrier()


def load(directory: Path, rank: Fsdp2Rank, updater: Updater) -> None:
    """Restores what `save` wrote, under the optimizer settings that the updater was built with. Random states come back
    under the same number of ranks only; under another lora_dropout, which alone draws from them, begins anew.
    Collective."""
    reader = PlainReader(directory / _FOLDER)
    there = reader.read_metadata().state_dict_metadata
    state: dict[str, torch.Tensor] = {f"model.{n}": shard.detach() for n, shard in _saved(rank, updater).items()}
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, shard in updater.trained.items():
        if f"{_MOMENTUM}.{name}" in there:  # Muon's
            found[name] = {_MOMENTUM: torch.zeros_like(shard.detach())}
        elif f"{_STEPS}.{name}" in there:  # a weight that no update has reached has none
            device = local(shard).device if updater.optimizer.param_groups[0]["fused"] else "cpu"
            found[name] = {key: torch.zeros_like(shard.detach()) for key in _MOMENTS}
            found[name][_STEPS] = torch.zeros((), dtype=torch.float32, device=device)
        state |= {f"{key}.{name}": value for key, value in found.get(name, {}).items()}
    state[_UPDATES] = torch.tensor(0)
    state_dict_loader.load(state, storage_reader=reader)
    updater.optimizer.state.clear()
    with updater.moments_at_work():
        for name, values in found.items():
            updater.optimizer.state[updater.trained[name]] = values
        if isinstance(optimizer := updater.optimizer, OfShards):
            own = torch.load(_own_moments(directory, rank.context.rank), weights_only=True, map_location="cpu")
            optimizer.restore({updater.trained[name]: values for name, values in own.items()})
    go_on_after(updater.schedule, int(state[_UPDATES]))
    if SavedFacts.read(directory).layout == _layout(rank):
        set_random_state(torch.load(random_state_file(directory, rank.context.rank), weights_only=True))


def _own_moments(directory: Path, rank: int) -> Path:
    """Moments of 8 bits, whose blocks no other number of ranks could read."""
    return directory / f"moments_{rank}.pt"


def _saved(rank: Fsdp2Rank, updater: Updater) -> Mapping[str, torch.Tensor]:
    """The weights; with adapters only what is trained."""
    return updater.trained if rank.adapts else rank.shards()


def _layout(rank: Fsdp2Rank) -> dict[str, object]:
    """Ranks with other rows draw other numbers: those of one tensor-parallel group draw the same."""
    layout: dict[str, object] = {"world_size": rank.context.world_size}
    size = rank.settings.tensor_parallel_size
    return layout | ({"tensor_parallel_size": size} if size > 1 else {})
