"""Nodes and devices: checks that what the plan needs is there, and says where each worker goes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from roll.configs.plan.layout import RolePlace, Seat
from roll.distributed.executor.processes.node_network import NodeNetwork, loopback_network, node_network
from roll.errors import ResourceError

logger = logging.getLogger(__name__)

_READY_TIMEOUT_S = 60
_SLOT_CPUS = 0.001  # a bundle must ask for something; devices of a CPU-only machine are no Ray resource


@dataclass(frozen=True)
class Node:
    """One node of the run. `address` is where workers meet. `gpu_ids` are what CUDA_VISIBLE_DEVICES calls its devices;
    empty on a CPU-only machine. `variables` are what its processes start with, `num_cores` what Ray counts there."""

    index: int
    address: str
    gpu_ids: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict, compare=False)
    num_cores: int = 1


@dataclass(frozen=True)
class TakenSeat(Seat):
    """A seat of the plan on a node that is there."""

    host: Node = field(kw_only=True)

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        return tuple(self.host.gpu_ids[i] for i in self.local_ids) if self.host.gpu_ids else ()


def devices_of(seats: Iterable[Seat]) -> frozenset[int]:
    return frozenset(device for seat in seats for device in seat.devices)


class ResourceManager:
    """One placement-group bundle per node. On a CPU-only machine (or cluster) the devices are slots: numbers, no
    resource."""

    def __init__(self, num_nodes: int, num_gpus_per_node: int, network_interface: str | None = None):
        nodes = [node for node in ray.nodes() if node["Alive"]]
        with_gpus = [node for node in nodes if node["Resources"].get("GPU", 0) >= 1]
        self.has_gpus = bool(with_gpus)
        self._check(nodes, with_gpus, num_nodes, num_gpus_per_node)
        self._is_released = False
        bundle = {"CPU": 1.0, "GPU": float(num_gpus_per_node)} if self.has_gpus else {"CPU": _SLOT_CPUS}
        self._group = placement_group([bundle] * num_nodes, strategy="STRICT_SPREAD" if num_nodes > 1 else "PACK")
        if not self._group.wait(_READY_TIMEOUT_S):
            remove_placement_group(self._group)
            raise ResourceError(
                f"num_nodes: {num_nodes}, num_gpus_per_node: {num_gpus_per_node}: the Ray cluster did not free them "
                f"within {_READY_TIMEOUT_S} s; in use: {_in_use()}. Wait for the other run, or lower them."
            )
        try:
            gpu_ids = self._gpu_ids(num_nodes, num_gpus_per_node)
            placed = self._placed(num_nodes)
            networks = self._networks(placed, network_interface)
        except BaseException:
            self.release()
            raise
        self.nodes = [
            Node(i, network.address, gpu_ids[i], network.variables, int(placed[i]["Resources"].get("CPU", 1)))
            for i, network in enumerate(networks)
        ]

    def seats(self, place: RolePlace) -> list[TakenSeat]:
        """Seats of the workers of a role."""
        return [TakenSeat(**vars(seat), host=self.nodes[seat.node]) for seat in place.workers]

    def scheduling(self, seat: Seat) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=seat.node)

    def release(self) -> None:
        """Gives the bundles back, and kills whatever still runs in them: where Ray goes on after the run, nobody else
        does. Idempotent."""
        if not self._is_released:
            self._is_released = True
            remove_placement_group(self._group)

    def _check(self, nodes: list[dict], with_gpus: list[dict], num_nodes: int, num_gpus_per_node: int) -> None:
        usable = [n for n in with_gpus if n["Resources"]["GPU"] >= num_gpus_per_node] if self.has_gpus else nodes
        if len(usable) >= num_nodes:
            return
        found = ", ".join(f"{n['NodeManagerAddress']} ({int(n['Resources'].get('GPU', 0))} GPUs)" for n in nodes)
        remedy = "start Ray on more nodes (ray start --address=...) and set RAY_ADDRESS, or lower num_nodes"
        if self.has_gpus and max(n["Resources"]["GPU"] for n in with_gpus) < num_gpus_per_node:
            remedy = f"set num_gpus_per_node: {int(max(n['Resources']['GPU'] for n in with_gpus))} or use larger nodes"
        raise ResourceError(
            f"num_nodes: {num_nodes} with num_gpus_per_node: {num_gpus_per_node} need more than the cluster has: "
            f"{found}. {remedy}."
        )

    def _gpu_ids(self, num_nodes: int, num_gpus_per_node: int) -> list[tuple[str, ...]]:
        if not self.has_gpus:
            return [()] * num_nodes
        probes = [_probe_gpus(self._group, index, num_gpus_per_node) for index in range(num_nodes)]
        return [in_order(ids) for ids in ray.get(probes)]

    def _placed(self, num_nodes: int) -> list[dict]:
        """Ray's description of the node of each bundle."""
        by_id = {node["NodeID"]: node for node in ray.nodes()}
        node_ids = placement_group_table(self._group)["bundles_to_node_id"]
        return [by_id[node_ids[index]] for index in range(num_nodes)]

    def _networks(self, placed: Sequence[dict], interface: str | None) -> list[NodeNetwork]:
        if len(placed) == 1 and interface is None:
            return [loopback_network()]
        addresses = [node["NodeManagerAddress"] for node in placed]
        try:
            return ray.get(
                [_on_bundle(self._group, i, node_network, address, interface) for i, address in enumerate(addresses)]
            )
        except RayTaskError as error:
            raise ResourceError(str(error.cause)) from error


def in_order(gpu_ids: Sequence[int | str]) -> tuple[str, ...]:
    """Ids as CUDA_VISIBLE_DEVICES has them, ascending: Ray gives those of a narrowed variable in any order, and device
    0 of a run must be the same GPU every time. Names (GPU-..., MIG-...) come in alphabetical order."""
    return tuple(sorted(map(str, gpu_ids), key=lambda gpu: (not gpu.isdigit(), int(gpu) if gpu.isdigit() else 0, gpu)))


def _probe_gpus(group: PlacementGroup, index: int, num_gpus: int) -> ray.ObjectRef:
    """Which GPUs the bundle holds: Ray knows only inside a task that asks for them all."""
    return _on_bundle(group, index, ray.get_gpu_ids, num_gpus=num_gpus)


def _on_bundle(
    group: PlacementGroup, index: int, function: Callable[..., Any], *arguments: Any, num_gpus: int = 0
) -> ray.ObjectRef:
    """What `function` returns on the bundle's node."""
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    task = ray.remote(function).options(num_cpus=0, num_gpus=num_gpus, scheduling_strategy=strategy)
    return task.remote(*arguments)


def _in_use() -> str:
    total, free = ray.cluster_resources(), ray.available_resources()
    used = {name: total[name] - free.get(name, 0) for name in ("CPU", "GPU") if name in total}
    return ", ".join(f"{amount:g} of {total[name]:g} {name}" for name, amount in used.items())
