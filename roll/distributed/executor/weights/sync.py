"""actor_train -> actor_infer: has the trainer send its weights to all engines."""

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.executor.processes.resource_manager import AssignedSlot
from roll.distributed.executor.weights.sender import EngineRoute, SendPlan, SendReport
from roll.distributed.weights.bucket import FileBucket
from roll.errors import ConfigError, StorageError, WorkerError
from roll.platforms.table import CPU
from roll.utils.network import LOOPBACK

logger = logging.getLogger(__name__)

_GENERATIONS = itertools.count(1)  # one trainer may send to several roles, one after another


class WeightSync:
    """Publishes the trainer's weights to all engines. The buckets go from the sending ranks to the engines directly."""

    def __init__(self, trainer: Cluster, engines: Cluster, bucket_bytes: int, plan: SendPlan):
        self._trainer = trainer
        self._engines = engines
        self._bucket_bytes = bucket_bytes
        self._plan = plan
        self.renew()
        self._whole_at: int | None = None  # the generation of receivers that have had all weights
        self.sent_bytes = 0  # in the last update, to each engine
        logger.info("the weights of %s go to %s", trainer.role, _summary(plan))

    def renew(self) -> None:
        """Called when an engine was restarted: buffers and groups that it had joined are of no use to it."""
        self._plan = replace(self._plan, generation=next(_GENERATIONS))

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
                logger.warning("sending the weights again, since an engine died: %s", error)
                self.renew()

    def publish(self, version: int) -> None:
        """Returns when every engine uses the weights of this version; engines that had all get what training
        changes."""
        whole, self._whole_at = self._whole_at != self._plan.generation, None  # unless it succeeds
        replies: list[SendReport | None] = self._trainer.call_all(
            "publish_weights", self._engines.workers, self._plan, self._bucket_bytes, version, whole
        )
        sent = replies[self._plan.lead]
        versions = None if sent is None else sent.versions
        if sent is None or versions != [version] * len(self._engines):
            raise WorkerError(
                f"after the weight update to version {version} the engines of {self._engines.role} report {versions}"
            )
        self.sent_bytes = sent.num_bytes
        if not whole or all(self._engines.call_all("takes_parts")):
            self._whole_at = self._plan.generation


def _summary(plan: SendPlan) -> str:
    """Example: 2 engines by cuda_ipc from ranks 0 1 2 3, 1 engine by broadcast from rank 0."""
    parts = []
    for route in dict.fromkeys(way.route for way in plan.ways):
        ways = [way for way in plan.ways if way.route == route]
        ranks = sorted({rank for way in ways for rank in way.senders})
        engines = f"{len(ways)} engine{'s' if len(ways) > 1 else ''}"
        parts.append(f"{engines} by {route} from rank{'s' if len(ranks) > 1 else ''} {' '.join(map(str, ranks))}")
    return ", ".join(parts)


# A saved model -> actor_infer: the engines read its files, which all of them see; no trainer takes part.


class FileWeights:
    """Brings the weights of a directory with safetensors to all engines."""

    def __init__(self, engines: Cluster):
        self._engines = engines

    def publish_healing(self, directory: Path, version: int, heal: Callable[[], bool]) -> int:
        """`publish` to engines that may die on the way, as `WeightSync.publish_healing`."""
        while True:
            try:
                return self.publish(directory, version)
            except WorkerError as error:
                if not heal():
                    raise
                logger.warning("reading the weights again, since an engine died: %s", error)

    def publish(self, directory: Path, version: int) -> int:
        """Returns how many bytes the weights of this version are, once every engine uses them; StorageError without."""
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise StorageError(f"{directory} holds no safetensors")
        versions: list[int] = []
        for number, path in enumerate(files):
            last = version if path is files[-1] else None
            versions = self._engines.call_all("receive_weights", FileBucket(path), number == 0, last, True)
        if versions != [version] * len(self._engines):
            raise WorkerError(f"after the weights of version {version} were read the engines report {versions}")
        return sum(path.stat().st_size for path in files)


# actor_train -> actor_infer: how each engine gets its weights, by where both are.

RouteKey = Literal["auto", "memory", "broadcast", "file"]


def choose_route(
    trainers: Sequence[AssignedSlot], lead: int, receiver: AssignedSlot, num_ranks: int, route: RouteKey
) -> EngineRoute:
    """How one engine, of which `num_ranks` processes read, is reached. `auto`, by where its GPUs are:

    - every one is also a rank's of the trainer: CUDA IPC, where the platform has it;
    - some are, or there are none: shared memory, from a rank on the engine's host (NCCL takes no two ranks on one
      device);
    - none is, or no rank of the trainer is on the engine's host: a broadcast, by NCCL (HCCL on Ascend).

    `memory` takes shared memory in the last case, too. Raises ConfigError if that cannot work."""
    if route in ("file", "broadcast"):
        return EngineRoute(route, (lead,) * num_ranks)
    here = [slot for slot in trainers if slot.node == receiver.node]
    owners = {gpu: slot.rank for slot in here for gpu in slot.gpu_ids}
    shared = [gpu for gpu in receiver.gpu_ids if gpu in owners]
    if receiver.gpu_ids and len(shared) == len(receiver.gpu_ids) and receiver.platform.has_ipc:
        return EngineRoute(
            "cuda_ipc", tuple(owners[gpu] for gpu in shared[:num_ranks])
        )  # engines count their GPUs in order
    if here and (route == "memory" or shared or not (owners and receiver.gpu_ids)):
        return EngineRoute("memory", (_sender(here, lead),) * num_ranks)
    if route == "memory":
        hosts = sorted({slot.host.address for slot in trainers})
        raise ConfigError(
            f"weight_sync_route: memory needs one host, but the trainer is on {', '.join(hosts)} and an engine on "
            f"{receiver.host.address}. Set weight_sync_route: broadcast or file."
        )
    return EngineRoute("broadcast", (lead,) * num_ranks)


def _sender(here: Sequence[AssignedSlot], lead: int) -> int:
    """One of the ranks on a host: the lead if it is there."""
    return min((slot.rank for slot in here), key=lambda rank: (rank != lead, rank))


def plan_send(
    trainers: Sequence[AssignedSlot],
    lead: int,
    receivers: Sequence[AssignedSlot],
    num_ranks: Sequence[int],
    route: RouteKey,
    directory: Path | None,
) -> SendPlan:
    """How each engine is reached. NCCL and HCCL cannot join two processes on one device: gloo carries that."""
    ways = tuple(
        choose_route(trainers, lead, receiver, count, route)
        for receiver, count in zip(receivers, num_ranks, strict=True)
    )
    members = [trainers[lead], *(slot for slot, way in zip(receivers, ways, strict=True) if way.route == "broadcast")]
    gpus = [(slot.node, gpu) for slot in members for gpu in slot.gpu_ids]
    on_gpus_of_their_own = all(slot.gpu_ids for slot in members) and len(set(gpus)) == len(gpus)
    return SendPlan(
        ways=ways,
        lead=lead,
        backend=(trainers[lead].platform if on_gpus_of_their_own else CPU).communication_backend,
        address=LOOPBACK if all(slot.node == trainers[lead].node for slot in members) else trainers[lead].host.address,
        directory=directory,
    )
