"""actor_train -> actor_infer: chooses how each engine gets its weights, and has the trainer send them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from roll.distributed.executor.cluster import Cluster
from roll.distributed.executor.resource_manager import Seat
from roll.distributed.executor.weight_sender import Route, SendPlan
from roll.errors import ConfigError, WorkerError
from roll.utils.network import LOOPBACK

logger = logging.getLogger(__name__)

RouteKey = Literal["auto", "memory", "broadcast", "file"]


def choose_route(sender: Seat, receiver: Seat, route: RouteKey, trainers: Sequence[Seat]) -> Route:
    """How one engine is reached. `auto`, by where its GPUs are:

    - the sender's own GPU: CUDA IPC;
    - on the sender's host, shared with some rank of the trainer: shared memory (two processes on one GPU are no two
      ranks of NCCL, and its kernels would wait for their turns on GPUs that both use);
    - on the sender's host, none of the trainer's: a broadcast, which NCCL carries from GPU to GPU;
    - on another host: a broadcast.

    Without GPUs `auto` is shared memory on one host. `memory` is CUDA IPC where both use the same GPU, shared memory
    otherwise. Raises ConfigError if the route cannot work.
    """
    same_host = sender.node == receiver.node
    same_gpu = bool(sender.gpu_ids) and receiver.gpu_ids == sender.gpu_ids
    if route == "file":
        return "file"
    if route == "memory" or (route == "auto" and same_host and (not sender.gpu_ids or _share(receiver, trainers))):
        if not same_host:
            raise ConfigError(
                f"weight_sync_route: memory needs one host, but the trainer is on {sender.node.address} and an engine "
                f"on {receiver.node.address}. Set weight_sync_route: broadcast or file."
            )
        return "cuda_ipc" if same_gpu else "memory"
    return "broadcast"


def _share(receiver: Seat, trainers: Sequence[Seat]) -> bool:
    return any(seat.node == receiver.node and set(seat.gpu_ids) & set(receiver.gpu_ids) for seat in trainers)


def plan_send(
    trainers: Sequence[Seat],
    sender_rank: int,
    receivers: Sequence[Seat],
    num_ranks: Sequence[int],
    route: RouteKey,
    directory: Path | None,
) -> SendPlan:
    """How each engine is reached. NCCL cannot join two processes on one GPU: gloo carries such a broadcast."""
    sender = trainers[sender_rank]
    routes: tuple[Route, ...] = tuple(choose_route(sender, receiver, route, trainers) for receiver in receivers)
    group = [receiver for receiver, chosen in zip(receivers, routes, strict=True) if chosen == "broadcast"]
    gpus = [(seat.node.index, gpu) for seat in (sender, *group) for gpu in seat.gpu_ids]
    all_on_gpus = bool(sender.gpu_ids) and all(receiver.gpu_ids for receiver in group)
    return SendPlan(
        routes=routes,
        num_ranks=tuple(num_ranks),
        backend="nccl" if all_on_gpus and len(set(gpus)) == len(gpus) else "gloo",
        address=LOOPBACK if all(seat.node == sender.node for seat in receivers) else sender.node.address,
        directory=directory,
    )


class WeightSync:
    """Publishes the trainer's weights to all engines. The buckets go from the sending rank to the engines directly."""

    def __init__(
        self,
        trainer: Cluster,
        sender_rank: int,
        engines: Cluster,
        num_ranks: Sequence[int],
        bucket_bytes: int,
        route: RouteKey = "auto",
        directory: Path | None = None,
    ):
        self._trainer = trainer
        self._engines = engines
        self._bucket_bytes = bucket_bytes
        self._sender_rank = sender_rank
        self.plan = plan_send(trainer.seats, sender_rank, engines.seats, num_ranks, route, directory)

    def renew(self) -> None:
        """Called when an engine was restarted: buffers and groups that it had joined are of no use to it."""
        self.plan = replace(self.plan, generation=self.plan.generation + 1)

    def publish_healing(self, version: int, heal: Callable[[], bool]) -> None:
        """`publish` to engines that may die on the way: `heal` brings dead ones back and says whether there were any.
        Raises what `publish` raises if no engine died of it."""
        while True:
            try:
                self.publish(version)
                return
            except WorkerError as error:
                if not heal():
                    raise
                logger.warning("the weights are sent again, since an engine died meanwhile: %s", error)
                self.renew()

    def publish(self, version: int) -> None:
        """Returns when every engine uses the weights under this version. Engines must be paused or idle."""
        replies = self._trainer.call_all(
            "publish_weights", self._engines.workers, self.plan, self._bucket_bytes, version
        )
        versions = replies[self._sender_rank]
        if versions != [version] * len(self._engines):
            raise WorkerError(
                f"after the weight update to version {version} the engines of {self._engines.role} report {versions}"
            )
