"""actor_train -> actor_infer: how each engine gets its weights, by where both are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from roll.distributed.executor.resource_manager import Seat
from roll.distributed.executor.send_plan import Route, SendPlan
from roll.errors import ConfigError
from roll.utils.network import LOOPBACK

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
