"""One update after the other: the norm of the whole gradient, clipping, the optimizer on this rank's shards."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from roll.configs.plan.run_plan import TrainPlan
from roll.configs.sections.training import TrainingArgs
from roll.distributed.strategy.data_parallel import all_reduce
from roll.distributed.strategy.fsdp2.meshes import tensor_placement
from roll.distributed.strategy.fsdp2.rank import Fsdp2Rank, local
from roll.distributed.strategy.host_copies import HostCopies
from roll.distributed.strategy.optimizer import not_finite, optimizer_of, schedule

_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_


class Updater:
    """The optimizer and its schedule over the trained shards of a rank."""

    def __init__(self, rank: Fsdp2Rank, args: TrainingArgs, plan: TrainPlan):
        self._rank, self._max_norm = rank, plan.max_grad_norm
        shards = rank.shards()
        self.trained = {name: shard for name, shard in shards.items() if shard.requires_grad}
        self.optimizer = optimizer_of(rank.module, args, lambda shard: shard.dim())
        self.schedule = schedule(self.optimizer, args, plan.total_updates, plan.warmup_updates)
        self._copies = HostCopies()
        own, given = plan.optimizer_waits, rank.settings
        self._waits = (given.optimizer_offload or own) and not given.offload_policy  # between two updates

    def step(self, role: str) -> dict[str, float]:
        """Clips, updates, and returns `grad_norm` (before clipping) and `learning_rate`. StrategyError on every rank,
        with the weights untouched, if the gradient is not finite."""
        learning_rate = float(self.schedule.get_last_lr()[0])
        gradients = [local(shard.grad) for shard in self.trained.values() if shard.grad is not None]
        norm = self._norm()
        if not math.isfinite(norm):
            raise not_finite(role, norm)
        if 0 < self._max_norm < norm + _EPSILON:
            for gradient in gradients:
                gradient.mul_(self._max_norm / (norm + _EPSILON))
        with self.moments_at_work():
            self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return {"grad_norm": norm, "learning_rate": learning_rate}

    def _norm(self) -> float:
        """Norm of the gradients of all ranks' shards. A weight that tensor-parallel ranks hold whole counts once. The
        result is the same on all ranks."""
        found = [shard.grad for shard in self.trained.values() if isinstance(shard.grad, DTensor)]
        divided = [local(gradient) for gradient in found if tensor_placement(gradient) is not None]
        others = [local(gradient) for gradient in found if tensor_placement(gradient) is None]
        own = [float(get_total_norm(gradients)) ** 2 for gradients in (divided, others)]
        of_divided, of_others = all_reduce(own, self._rank.context, group=self._rank.mesh.shard_group)
        if (group := self._rank.mesh.tensor_group) is not None:
            of_divided = all_reduce([of_divided], self._rank.context, group=group)[0]
        return math.sqrt(of_divided + of_others)

    @contextmanager
    def moments_at_work(self) -> Iterator[None]:
        """Inside, the optimizer's states are on the device; afterwards where settings want them."""
        if self._waits:
            self._copies.bring_back(self._moments())
        yield
        if self._waits:
            self._copies.take(self._moments())

    def offload(self) -> None:
        if not self._rank.settings.offload_policy:
            self._copies.take(self._moments())

    def load(self) -> None:
        if not self._waits:
            self._copies.bring_back(self._moments())

    def _moments(self) -> Iterator[torch.Tensor]:
        """Moments of the optimizer, without the step counts."""
        for state in self.optimizer.state.values():
            tensors = [value for value in state.values() if torch.is_tensor(value) and value.ndim]
            yield from (local(value) if isinstance(value, DTensor) else value for value in tensors)
