"""actor_train -> actor_infer: how each engine gets its weights, by where both are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from roll.distributed.executor.processes.resource_manager import TakenSeat
from roll.distributed.executor.weights.send_plan import SendPlan, Way
from roll.errors import ConfigError
from roll.utils.network import LOOPBACK

RouteKey = Literal["auto", "memory", "broadcast", "file"]


def choose_way(trainers: Sequence[TakenSeat], lead: int, receiver: TakenSeat, num_ranks: int, route: RouteKey) -> Way:
    """How one engine, of which `num_ranks` processes read, is reached. `auto`, by where its GPUs are:

    - every one is also a rank's of the trainer: CUDA IPC, from each rank to the one on its own GPU;
    - some are, or there are none: shared memory, from a rank on the engine's host (two processes on one GPU are no
      two ranks of NCCL, and its kernels would wait for their turns on GPUs that both use);
    - none is, or no rank of the trainer is on the engine's host: a broadcast, which NCCL carries from GPU to GPU.

    `memory` takes shared memory in the last case, too. Raises ConfigError if that cannot work.
    """
    if route in ("file", "broadcast"):
        return Way(route, (lead,) * num_ranks)
    here = [seat for seat in trainers if seat.node == receiver.node]
    owners = {gpu: seat.rank for seat in here for gpu in seat.gpu_ids}
    shared = [gpu for gpu in receiver.gpu_ids if gpu in owners]
    if receiver.gpu_ids and len(shared) == len(receiver.gpu_ids):
        return Way("cuda_ipc", tuple(owners[gpu] for gpu in shared[:num_ranks]))  # engines count their GPUs in order
    if here and (route == "memory" or shared or not (owners and receiver.gpu_ids)):
        return Way("memory", (_sender(here, lead),) * num_ranks)
    if route == "memory":
        hosts = sorted({seat.host.address for seat in trainers})
        raise ConfigError(
            f"weight_sync_route: memory needs one host, but the trainer is on {', '.join(hosts)} and an engine on "
            f"{receiver.host.address}. Set weight_sync_route: broadcast or file."
        )
    return Way("broadcast", (lead,) * num_ranks)


def _sender(here: Sequence[TakenSeat], lead: int) -> int:
    """One of the ranks on a host: the lead if it is there."""
    return min((seat.rank for seat in here), key=lambda rank: (rank != lead, rank))


def plan_send(
    trainers: Sequence[TakenSeat],
    lead: int,
    receivers: Sequence[TakenSeat],
    num_ranks: Sequence[int],
    route: RouteKey,
    directory: Path | None,
) -> SendPlan:
    """How each engine is reached. NCCL cannot join two processes on one GPU: gloo carries such a broadcast."""
    ways = tuple(
        choose_way(trainers, lead, receiver, count, route) for receiver, count in zip(receivers, num_ranks, strict=True)
    )
    members = [trainers[lead], *(seat for seat, way in zip(receivers, ways, strict=True) if way.route == "broadcast")]
    gpus = [(seat.node, gpu) for seat in members for gpu in seat.gpu_ids]
    on_gpus_of_their_own = all(seat.gpu_ids for seat in members) and len(set(gpus)) == len(gpus)
    return SendPlan(
        ways=ways,
        lead=lead,
        backend="nccl" if on_gpus_of_their_own else "gloo",
        address=LOOPBACK if all(seat.node == trainers[lead].node for seat in members) else trainers[lead].host.address,
        directory=directory,
    )
