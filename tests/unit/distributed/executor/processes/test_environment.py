from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from roll.distributed.executor.processes import resource_manager
from roll.distributed.executor.processes.resource_manager import (
    RUN_ID,
    RUN_MARK,
    SHARES_GPUS,
    AssignedSlot,
    Node,
    begin_environment,
    in_order,
    platform_of_cluster,
    rank_environment,
    role_environment,
)
from roll.errors import ResourceError
from roll.platforms.table import CPU, CUDA, NPU, ROCM, Platform

FIRST = Node(0, "10.0.0.1", ("4", "5", "6", "7"), num_cores=96)
SECOND = Node(1, "10.0.0.2", ("0", "1", "2", "3"))
LAPTOP = Node(0, "127.0.0.1", (), num_cores=8)


def on(node: Node, *local_ids: int, rank: int = 0, local_rank: int = 0) -> AssignedSlot:
    devices = tuple(4 * node.index + i for i in local_ids)
    return AssignedSlot(rank, node.index, local_rank, devices, local_ids, host=node)


NCCL = {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "2"}
ON_GPUS = {**NCCL, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0"}


@pytest.mark.parametrize(
    ("role", "seat", "expected"),
    [
        ("actor_train", on(FIRST, 0), {"OMP_NUM_THREADS": "24", **ON_GPUS}),
        ("actor_infer", on(FIRST, 0, 1), {"OMP_NUM_THREADS": "24", **ON_GPUS}),
        ("reference", on(SECOND, 0), {"OMP_NUM_THREADS": "1", **ON_GPUS}),
        ("rewards.math", on(FIRST), {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}),
        ("actor_train", on(LAPTOP, 0), {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}),
    ],
    ids=["trainer", "engine-tp2", "fewer-cores-than-gpus", "reward-beside-gpus", "laptop"],
)
def test_threads_and_nccl_settings_of_each_kind_of_role(role: str, seat: AssignedSlot, expected: dict[str, str]):
    """All roles with GPUs agree about NCCL; a worker has its share of the cores where it has GPUs, one thread else."""
    common = {"ROLL_ROLE": role, RUN_MARK: RUN_ID, "TOKENIZERS_PARALLELISM": "false"}
    assert role_environment(role, {}, seat) == common | expected


@pytest.mark.parametrize(("own", "left"), [({SHARES_GPUS: "1"}, {"PYTORCH_ALLOC_CONF": "a:1"}), ({}, None)])
def test_roles_that_share_gpus_start_without_expandable_segments(own: dict[str, str], left: dict[str, str] | None):
    """Whoever sets the flag: a shell or an image, which workers inherit, or system_envs."""
    inherited = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    own = own | {"PYTORCH_ALLOC_CONF": "a:1,expandable_segments:True"}
    variables = dict(inherited)
    cleared = begin_environment(variables, own)
    assert variables == (own | left if left is not None else inherited | own)
    assert cleared == ([] if left is None else ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])


def test_ranks_on_two_nodes_see_their_own_gpus_and_meet_at_the_first():
    slots = [on(FIRST, 0), on(FIRST, 1, rank=1, local_rank=1), on(SECOND, 0, rank=2)]
    assert rank_environment(slots, slots[1], is_distributed=True) == {
        "CUDA_VISIBLE_DEVICES": "5",
        "RANK": "1",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
    }
    assert rank_environment(slots, slots[2], is_distributed=True)["LOCAL_WORLD_SIZE"] == "1"


def test_workers_start_with_what_their_platform_needs():
    """HCCL's ports are the system's choice: two processes on one NPU would collide on HCCL_IF_BASE_PORT."""
    ascend = replace(FIRST, platform=NPU)
    variables = role_environment("actor_train", {}, on(ascend, 1))
    ports = {"HCCL_HOST_SOCKET_PORT_RANGE": "auto", "HCCL_NPU_SOCKET_PORT_RANGE": "auto"}
    assert variables.items() >= (ports | {"OMP_NUM_THREADS": "24"}).items() and not NCCL.keys() & variables.keys()
    ranks = [on(ascend, 0), on(ascend, 1, rank=1, local_rank=1)]
    own = rank_environment(ranks, ranks[1], is_distributed=True)
    assert (own["ASCEND_RT_VISIBLE_DEVICES"], own["LOCAL_RANK"]) == ("5", "0") and "CUDA_VISIBLE_DEVICES" not in own
    assert rank_environment([on(ascend)], on(ascend), is_distributed=False) == {"ASCEND_RT_VISIBLE_DEVICES": ""}
    amd = replace(FIRST, platform=ROCM)
    assert rank_environment([on(amd, 2)], on(amd, 2), is_distributed=False) == {"HIP_VISIBLE_DEVICES": "6"}
    assert [seat.platform for seat in (on(ascend, 0), on(ascend), on(LAPTOP, 0))] == [NPU, CPU, CPU]


# Which platform a run has, by its key and by what Ray says of the nodes.


def nodes(**resources: float) -> list[dict[str, Any]]:
    return [{"Resources": {"CPU": 8.0}}, {"Resources": {"CPU": 8.0, **resources}}]


@pytest.mark.parametrize(
    ("name", "there", "is_hip", "expected"),
    [
        ("auto", nodes(), False, CPU),
        ("auto", nodes(GPU=8.0), False, CUDA),
        ("auto", nodes(GPU=8.0), True, "platform: auto: the plan is for cuda, and torch is built for ROCm. Set"),
        ("auto", nodes(NPU=8.0), False, "platform: auto: the Ray cluster has NPUs, and the plan was made without them"),
        ("cuda", nodes(GPU=8.0), False, CUDA),
        ("cuda", nodes(), False, r"platform: cuda: no node of the Ray cluster has GPUs \(its resource GPU\)"),
        ("rocm", nodes(GPU=8.0), True, ROCM),
        ("rocm", nodes(GPU=8.0), False, "platform: rocm: the plan is for rocm, and torch is built for CUDA. Set"),
        ("npu", nodes(NPU=8.0), False, NPU),
        ("npu", nodes(GPU=8.0), False, r"platform: npu: no node of the Ray cluster has NPUs \(its resource NPU\)"),
        ("cpu", nodes(GPU=8.0), False, CPU),
        ("cpu", nodes(NPU=8.0), False, CPU),
    ],
)
def test_the_platform_of_a_run_is_its_keys_or_that_of_the_clusters_gpus(
    name: str, there: list[dict[str, Any]], is_hip: bool, expected: Platform | str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(resource_manager, "torch_is_for_hip", lambda: is_hip)
    if isinstance(expected, Platform):
        assert platform_of_cluster(name, there) is expected
    else:
        with pytest.raises(ResourceError, match=expected):
            platform_of_cluster(name, there)


@pytest.mark.parametrize(
    ("platform", "amounts"), [(CUDA, {"num_gpus": 4}), (NPU, {"num_gpus": 0, "resources": {"NPU": 4}})]
)
def test_ray_is_asked_for_devices_by_the_name_that_it_has_for_them(
    platform: Platform, amounts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    asked: list[Any] = []
    context = SimpleNamespace(get_accelerator_ids=lambda: {"GPU": [], "NPU": ["3", "1"]})

    def remote(function: Any) -> Any:
        def options(**amounts: Any) -> Any:
            asked.append(amounts)
            return SimpleNamespace(remote=function)

        return SimpleNamespace(options=options)

    monkeypatch.setattr(resource_manager.ray, "remote", remote)
    monkeypatch.setattr(resource_manager.ray, "get_gpu_ids", lambda: [2, 0])
    monkeypatch.setattr(resource_manager.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(resource_manager, "PlacementGroupSchedulingStrategy", lambda *a, **k: "here")
    group: Any = None
    reply: Any = resource_manager._probe_devices(group, 0, 4, platform)
    assert in_order(reply) == (("0", "2") if platform is CUDA else ("1", "3"))
    assert asked == [{"num_cpus": 0, **amounts, "scheduling_strategy": "here"}]
