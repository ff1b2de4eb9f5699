"""The place of every role: its workers, their nodes and devices, and which roles take turns on them."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from roll.configs.problems import Problem, ids_text
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.table import spec_of
from roll.utils.text import counted


@dataclass(frozen=True)
class WorkerSlot:
    """The place of one worker. `local_rank` counts the role's workers on its node. `devices` are global ids, and
    `local_ids` count from 0 on the node. A CPU worker has neither."""

    rank: int
    node: int = 0
    local_rank: int = 0
    devices: tuple[int, ...] = ()
    local_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class RolePlace:
    """All workers of a role."""

    role: str
    workers: tuple[WorkerSlot, ...]

    @property
    def device_ids(self) -> frozenset[int]:
        return frozenset(device for worker in self.workers for device in worker.devices)


@dataclass(frozen=True)
class Layout:
    """All roles of a run on its devices."""

    num_nodes: int
    num_devices_per_node: int
    roles: tuple[RolePlace, ...]

    def __getitem__(self, role: str) -> RolePlace:
        return next(place for place in self.roles if place.role == role)

    def shares_devices(self, role: str) -> bool:
        """True if another role has states on some of a role's devices."""
        device_ids = self[role].device_ids
        return any(device_ids & place.device_ids for place in self.roles if place.role != role)

    def apart(self, role: str, other: str) -> tuple[WorkerSlot, ...]:
        """The workers of a role that stand on none of the devices of another."""
        taken = self[other].device_ids
        return tuple(worker for worker in self[role].workers if not taken & {*worker.devices})

    def shared(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """Pairs of roles that take turns, with the devices they share."""
        pairs: list[tuple[str, str, tuple[int, ...]]] = []
        for i, first in enumerate(self.roles):
            for second in self.roles[i + 1 :]:
                if common := first.device_ids & second.device_ids:
                    pairs.append((first.role, second.role, tuple(sorted(common))))
        return tuple(pairs)


def place_roles(roles: Mapping[str, WorkerConfig], num_nodes: int, num_devices_per_node: int) -> Layout:
    """The layout of checked roles.

    Example: device_mapping 0..3 with num_gpus_per_worker 2 on nodes of 8 are two workers, on local ids (0, 1) and
    (2, 3) of node 0.
    """
    places = (RolePlace(role, _slots(worker, num_nodes, num_devices_per_node)) for role, worker in roles.items())
    return Layout(num_nodes, num_devices_per_node, tuple(places))


def _slots(worker: WorkerConfig, num_nodes: int, per_node: int) -> tuple[WorkerSlot, ...]:
    """CPU workers are spread over the nodes."""
    ids, size = worker.device_mapping, worker.num_gpus_per_worker
    slots: list[WorkerSlot] = []
    for rank in range(worker.num_workers):
        devices = () if ids is None else ids[rank * size : (rank + 1) * size]
        node = devices[0] // per_node if devices else rank * num_nodes // worker.num_workers
        local_rank = sum(other.node == node for other in slots)
        slots.append(WorkerSlot(rank, node, local_rank, devices, tuple(device % per_node for device in devices)))
    return tuple(slots)


def devices_apart(worker: WorkerConfig, taken: Collection[int]) -> list[tuple[int, ...]]:
    """The devices of each worker of a role that stands on none of these."""
    ids, size = worker.device_mapping or (), worker.num_gpus_per_worker
    groups = [ids[first : first + size] for first in range(0, len(ids), size)]
    return [devices for devices in groups if not {*devices} & {*taken}]


def layout_problems(roles: Mapping[str, WorkerConfig], num_nodes: int, per_node: int) -> Iterator[Problem]:
    """Ids that do not exist or repeat, workers that do not come out even or span nodes, overlaps that cannot take
    turns."""
    for role, worker in roles.items():
        yield from _role_problems(role, worker, num_nodes, per_node)
    names = list(roles)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            yield from _overlap_problems(first, roles[first], second, roles[second])


def _role_problems(role: str, worker: WorkerConfig, num_nodes: int, per_node: int) -> Iterator[Problem]:
    ids, size, key = worker.device_mapping, worker.num_gpus_per_worker, f"{role}.device_mapping"
    if ids is None:
        return
    total = num_nodes * per_node
    outside = sorted(device for device in set(ids) if device >= total)
    if outside:
        yield Problem(
            f"{key} uses devices {ids_text(sorted(set(ids)))}, but the run has {counted(num_nodes, 'node')} of "
            f"{per_node} (0..{total - 1}). Set num_nodes: {max(ids) // per_node + 1}, or use ids up to {total - 1}.",
            (key, "num_nodes", "num_gpus_per_node"),
        )
    repeated = sorted(device for device, times in Counter(ids).items() if times > 1)
    if repeated:
        yield Problem(f"{key} names device {ids_text(repeated)} more than once. Name each device once.", (key,))
    size_key = f"{role}.num_gpus_per_worker"
    if len(ids) % size:
        yield Problem(f"{key} has {len(ids)} devices, which do not divide by {size_key}: {size}.", (key, size_key))
    elif worker.world_size is not None and worker.world_size != worker.num_workers:
        yield Problem(
            f"{role}.world_size: {worker.world_size} contradicts {key}: its {len(ids)} devices, {size} per worker "
            f"(num_gpus_per_worker), make {worker.num_workers} workers. Remove world_size.",
            (key, size_key, f"{role}.world_size"),
        )
    if outside or repeated or len(ids) % size:
        return
    for devices in (ids[start : start + size] for start in range(0, len(ids), size)):
        if len({device // per_node for device in devices}) > 1:
            yield Problem(
                f"{key}: one worker would have devices {ids_text(devices)}; a worker cannot span nodes of {per_node}. "
                f"Order the ids so that each {size} consecutive ones lie on one node, or lower num_gpus_per_worker.",
                (key, size_key, "num_gpus_per_node"),
            )
            return


def _overlap_problems(first: str, one: WorkerConfig, second: str, two: WorkerConfig) -> Iterator[Problem]:
    a, b = set(one.device_mapping or ()), set(two.device_mapping or ())
    common = a & b
    if common and not (a <= b or b <= a):
        yield Problem(
            f"{first}.device_mapping ({ids_text(sorted(a))}) and {second}.device_mapping ({ids_text(sorted(b))}) "
            f"share only {ids_text(sorted(common))}: roles take turns on devices only if one's devices are all among "
            "the other's. Give both the same ids, or separate ones.",
            (f"{first}.device_mapping", f"{second}.device_mapping"),
        )


# How the workers of a role divide its work: data, tensor, pipeline and context parallel sizes.


@dataclass(frozen=True)
class ParallelSizes:
    """Sizes with data x tensor x pipeline x context x sequence = ranks; `sequence` is that of the trainers that keep
    every layer whole (ulysses_size). The expert sizes divide the ranks of a pipeline stage once more, for the experts'
    weights alone: they do not divide the batch.

    Example: 8 ranks of megatron_train with tensor 2 and pipeline 2 have data 2; with expert 2 as well, still 2.
    """

    data: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    sequence: int = 1
    expert: int = 1
    expert_tensor: int = 1


def parallel_sizes(worker: WorkerConfig) -> ParallelSizes:
    """Sizes of a role, as its strategy says. Engines that generate count a whole engine as one data-parallel rank."""
    spec = spec_of(worker.strategy_name)
    if spec.sizes:
        return spec.call_hook(spec.sizes, ParallelSizes, worker)
    return ParallelSizes(data=worker.num_workers, tensor=worker.num_gpus_per_worker)
