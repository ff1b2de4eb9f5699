"""Nodes and devices: checks that what the plan needs is there, and says where each worker goes."""

import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from roll.configs.plan.layout import RolePlace, WorkerSlot
from roll.errors import ResourceError
from roll.platforms.allocator import clear_expandable
from roll.platforms.table import ACCELERATORS, CPU, CUDA, PLATFORMS, ROCM, Platform, torch_is_for_hip
from roll.utils.network import LOOPBACK, address_of, interface_of

# Addresses on which the processes of a run listen for each other: loopback on one node, otherwise one interface of each
# node.


@dataclass(frozen=True)
class NodeNetwork:
    """`address`: where others reach the node. `variables`: what makes gloo and the platform's backend listen there."""

    address: str
    variables: Mapping[str, str]


def loopback_network(platform: Platform = CUDA) -> NodeNetwork:
    return NodeNetwork(LOOPBACK, _variables(platform, interface_of(LOOPBACK)))


def node_network(ray_address: str, network_interface: str | None, platform: Platform = CUDA) -> NodeNetwork:
    """Asked on the node itself. Without `network_interface` it is the interface of Ray's address, except where
    variables of the node, set before Ray was started there, name others. ResourceError if there is no such
    interface."""
    if network_interface is not None:
        return NodeNetwork(address_of(network_interface), _variables(platform, network_interface))
    ours = _variables(platform, interface_of(ray_address))
    return NodeNetwork(ray_address, {name: os.environ.get(name, value) for name, value in ours.items()})


def _variables(platform: Platform, interface: str) -> dict[str, str]:
    return {name: form.format(interface) for name, form in platform.interface_variables.items()}


logger = logging.getLogger(__name__)

_READY_TIMEOUT_S = 60
_SLOT_CPUS = 0.001  # a bundle must ask for something; devices of a CPU-only machine are no Ray resource


@dataclass(frozen=True)
class Node:
    """One node of the run. `address` is where workers meet. `gpu_ids` are what the platform's variable, such as
    CUDA_VISIBLE_DEVICES, calls its devices; empty on a CPU-only machine. `variables` are what its processes start with,
    `num_cores` what Ray counts there."""

    index: int
    address: str
    gpu_ids: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict, compare=False)
    num_cores: int = 1
    platform: Platform = CUDA


@dataclass(frozen=True)
class AssignedSlot(WorkerSlot):
    """A slot of the plan on a node that is there."""

    host: Node = field(kw_only=True)

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        return tuple(self.host.gpu_ids[i] for i in self.local_ids) if self.host.gpu_ids else ()

    @property
    def platform(self) -> Platform:
        return self.host.platform if self.gpu_ids else CPU


def devices_of(slots: Iterable[WorkerSlot]) -> frozenset[int]:
    return frozenset(device for slot in slots for device in slot.devices)


class ResourceManager:
    """One placement-group bundle per node. Without GPUs the devices are slots: numbers, no resource."""

    def __init__(
        self, num_nodes: int, num_gpus_per_node: int, network_interface: str | None = None, platform: str = "auto"
    ):
        """`platform`: the key of the run."""
        nodes = [node for node in ray.nodes() if node["Alive"]]
        self.platform = platform_of_cluster(platform, nodes)
        self.has_gpus = self.platform.is_accelerator
        self._check(nodes, num_nodes, num_gpus_per_node)
        self._is_released = False
        resource = self.platform.ray_resource
        bundle = {"CPU": 1.0, resource: float(num_gpus_per_node)} if self.has_gpus else {"CPU": _SLOT_CPUS}
        self._group = placement_group([bundle] * num_nodes, strategy="STRICT_SPREAD" if num_nodes > 1 else "PACK")
        if not self._group.wait(_READY_TIMEOUT_S):
            remove_placement_group(self._group)
            raise ResourceError(
                f"num_nodes: {num_nodes}, num_gpus_per_node: {num_gpus_per_node}: the Ray cluster did not free them "
                f"within {_READY_TIMEOUT_S} s; in use: {_in_use(self.platform)}. Wait for the other run, or lower them."
            )
        try:
            gpu_ids = self._gpu_ids(num_nodes, num_gpus_per_node)
            placed = self._placed(num_nodes)
            networks = self._networks(placed, network_interface)
        except BaseException:
            self.release()
            raise
        self.nodes = [
            Node(
                i,
                network.address,
                gpu_ids[i],
                network.variables,
                int(placed[i]["Resources"].get("CPU", 1)),
                self.platform,
            )
            for i, network in enumerate(networks)
        ]

    def slots(self, place: RolePlace) -> list[AssignedSlot]:
        return [AssignedSlot(**vars(slot), host=self.nodes[slot.node]) for slot in place.workers]

    def scheduling(self, slot: WorkerSlot) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=slot.node)

    def release(self) -> None:
        """Gives the bundles back, and kills whatever still runs in them. Idempotent."""
        if not self._is_released:
            self._is_released = True
            remove_placement_group(self._group)

    def _check(self, nodes: list[dict], num_nodes: int, num_gpus_per_node: int) -> None:
        counts = [_num_devices(node, self.platform) for node in nodes]
        usable = [count for count in counts if not self.has_gpus or count >= num_gpus_per_node]
        if len(usable) >= num_nodes:
            return
        devices = self.platform.devices if self.has_gpus else CUDA.devices
        there = ", ".join(
            f"{n['NodeManagerAddress']} ({count} {devices})" for n, count in zip(nodes, counts, strict=True)
        )
        remedy = "start Ray on more nodes (ray start --address=...) and set RAY_ADDRESS, or lower num_nodes"
        if self.has_gpus and max(counts) < num_gpus_per_node:
            remedy = f"set num_gpus_per_node: {max(counts)} or use larger nodes"
        raise ResourceError(
            f"num_nodes: {num_nodes} with num_gpus_per_node: {num_gpus_per_node} need more than the cluster has: "
            f"{there}. {remedy}."
        )

    def _gpu_ids(self, num_nodes: int, num_gpus_per_node: int) -> list[tuple[str, ...]]:
        if not self.has_gpus:
            return [()] * num_nodes
        probes = [_probe_devices(self._group, index, num_gpus_per_node, self.platform) for index in range(num_nodes)]
        return [in_order(ids) for ids in ray.get(probes)]

    def _placed(self, num_nodes: int) -> list[dict]:
        """Ray's description of the node of each bundle."""
        by_id = {node["NodeID"]: node for node in ray.nodes()}
        node_ids = placement_group_table(self._group)["bundles_to_node_id"]
        return [by_id[node_ids[index]] for index in range(num_nodes)]

    def _networks(self, placed: Sequence[dict], interface: str | None) -> list[NodeNetwork]:
        if len(placed) == 1 and interface is None:
            return [loopback_network(self.platform)]
        addresses = [node["NodeManagerAddress"] for node in placed]
        try:
            return ray.get(
                [
                    _on_bundle(self._group, i, node_network, address, interface, self.platform)
                    for i, address in enumerate(addresses)
                ]
            )
        except RayTaskError as error:
            raise ResourceError(str(error.cause)) from error


def in_order(gpu_ids: Sequence[int | str]) -> tuple[str, ...]:
    """Ids as CUDA_VISIBLE_DEVICES has them, ascending: Ray gives those of a narrowed variable in any order, and device
    0 of a run must be the same GPU every time. Names (GPU-..., MIG-...) come in alphabetical order."""
    return tuple(sorted(map(str, gpu_ids), key=lambda gpu: (not gpu.isdigit(), int(gpu) if gpu.isdigit() else 0, gpu)))


def platform_of_cluster(name: str, nodes: Sequence[Mapping[str, Any]]) -> Platform:
    """The platform of a run whose key `platform` is `name`, on these nodes as Ray describes them. `auto` takes GPUs
    where there are any, else the CPU. ResourceError for devices that are not there, for those that the plan did not
    know of, and for a torch that is not built for them: Ray calls AMD's and NVIDIA's GPUs alike."""
    with_devices = [platform for platform in ACCELERATORS if any(_num_devices(node, platform) for node in nodes)]
    if name == "auto" and with_devices and CUDA not in with_devices:
        raise ResourceError(
            f"platform: auto: the Ray cluster has {with_devices[0].devices}, and the plan was made without them. Set "
            f"platform: {with_devices[0].name}, or cpu to leave them alone."
        )
    platform = PLATFORMS[name] if name != "auto" else CUDA if with_devices else CPU
    if platform.is_accelerator and platform not in with_devices:
        raise ResourceError(
            f"platform: {name}: no node of the Ray cluster has {platform.devices} (its resource "
            f"{platform.ray_resource}). Start on such a machine, or set RAY_ADDRESS; `roll plan` needs none."
        )
    if platform in (CUDA, ROCM) and torch_is_for_hip() != (platform is ROCM):
        there, other = ("CUDA", CUDA) if platform is ROCM else ("ROCm", ROCM)
        raise ResourceError(
            f"platform: {name}: the plan is for {platform.name}, and torch is built for {there}. Set platform: "
            f"{other.name}, or install the other torch (docs/platforms.md)."
        )
    return platform


def _num_devices(node: Mapping[str, Any], platform: Platform) -> int:
    return int(node["Resources"].get(platform.ray_resource, 0))


def _probe_devices(group: PlacementGroup, index: int, num_devices: int, platform: Platform) -> ray.ObjectRef:
    """Ask which devices the bundle holds: Ray knows only inside a task that asks for them all."""
    resource = platform.ray_resource
    if resource == "GPU":
        return _on_bundle(group, index, ray.get_gpu_ids, num_gpus=num_devices)

    def ids() -> list[str]:  # local, so that it travels by value: the process there need not find this module
        return ray.get_runtime_context().get_accelerator_ids()[resource]

    return _on_bundle(group, index, ids, resources={resource: num_devices})


def _on_bundle(
    group: PlacementGroup, index: int, function: Callable[..., Any], *arguments: Any, **amounts: Any
) -> ray.ObjectRef:
    """Call `function` on the bundle's node, with these amounts of Ray's resources."""
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    task = ray.remote(function).options(**{"num_cpus": 0, "num_gpus": 0, **amounts}, scheduling_strategy=strategy)
    return task.remote(*arguments)


def _in_use(platform: Platform) -> str:
    total, free = ray.cluster_resources(), ray.available_resources()
    used = {name: total[name] - free.get(name, 0) for name in ("CPU", platform.ray_resource) if name in total}
    return ", ".join(f"{amount:g} of {total[name]:g} {name}" for name, amount in used.items())


# The environment variables of worker processes. Pure functions: what is set for a role, and what for one rank of it.

RUN_MARK = "ROLL_RUN"  # in the environment of every worker and of what it starts: the id of its run
RUN_ID = uuid.uuid4().hex  # of this driver's


SHARES_GPUS = "ROLL_SHARES_GPUS"  # in the environment of workers whose GPUs another role uses as well


def begin_environment(variables: MutableMapping[str, str], extra: Mapping[str, str]) -> list[str]:
    """Adds `extra` to a worker's variables, before torch is imported. Returns the variables in which expandable
    segments were switched off (`roll.platforms.allocator`). With GPUs the programs of its Python environment are on
    PATH: vLLM takes FlashInfer's fused all-reduce only where it finds `ninja` and `nvcc`."""
    variables.update(extra)
    if any(variables.get(platform.visible_variable) for platform in ACCELERATORS):
        programs, path = os.path.dirname(sys.executable), variables.get("PATH", os.defpath)
        if programs not in path.split(os.pathsep):
            variables["PATH"] = os.pathsep.join((path, programs))
    return clear_expandable(variables) if SHARES_GPUS in variables else []


def role_environment(role: str, system_envs: Mapping[str, str], slot: AssignedSlot) -> dict[str, str]:
    """Return the environment in which a process of a role starts; `system_envs` win. A process without a GPU has one
    thread: spinning threads of several ranks make each other 4-10 times slower. One with GPUs has its share of the
    node's cores, for AdamW in host memory."""
    defaults = {"ROLL_ROLE": role, RUN_MARK: RUN_ID, "TOKENIZERS_PARALLELISM": "false"}
    if slot.gpu_ids:
        share = max(slot.host.num_cores // len(slot.host.gpu_ids), 1)
        defaults |= {"OMP_NUM_THREADS": str(share), **slot.platform.worker_variables}
        defaults["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] = "0"  # NVIDIA's images of PyTorch set 1
    else:
        defaults |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return {**defaults, **system_envs}


# Folders that a worker adds to the end of its path: PYTHONPATH would put the user's `code.py` before Python's own.
IMPORT_FOLDERS = "ROLL_IMPORT_FOLDERS"


def import_environment(folders: Sequence[str], code: str | None, system_envs: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that lets workers import what the driver can: its `folders`, as far as they exist there,
    and the folder `code` of a roll that is not installed. Ray replaces ${PYTHONPATH} by the variable of the worker's
    node."""
    names = {IMPORT_FOLDERS: os.pathsep.join(folders)}
    if code is not None:
        names["PYTHONPATH"] = os.pathsep.join((code, system_envs.get("PYTHONPATH", "${PYTHONPATH}")))
    return names


def rank_environment(slots: Sequence[AssignedSlot], slot: AssignedSlot, is_distributed: bool) -> dict[str, str]:
    """Return the variables that a worker adds before torch is imported: devices, and those of torch.distributed."""
    visible = slot.host.platform.visible(slot.gpu_ids)
    if not is_distributed:
        return visible
    one_host = len({other.host.address for other in slots}) == 1
    return visible | {
        "RANK": str(slot.rank),
        "WORLD_SIZE": str(len(slots)),
        "LOCAL_RANK": "0" if slot.gpu_ids else str(slot.local_rank),  # each worker sees its own GPU only
        "LOCAL_WORLD_SIZE": str(sum(other.node == slot.node for other in slots)),
        "MASTER_ADDR": LOOPBACK if one_host else slots[0].host.address,
    }
