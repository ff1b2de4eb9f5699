import pytest

from roll.distributed.executor.processes.resource_manager import (
    RUN_ID,
    RUN_MARK,
    SHARES_GPUS,
    AssignedSlot,
    Node,
    begin_environment,
    import_environment,
    in_order,
    rank_environment,
    role_environment,
)
from roll.distributed.strategy.sglang.args import worker_environment

FIRST = Node(0, "10.0.0.1", ("4", "5", "6", "7"), num_cores=96)
SECOND = Node(1, "10.0.0.2", ("0", "1", "2", "3"))
LAPTOP = Node(0, "127.0.0.1", (), num_cores=8)


def on(node: Node, *local_ids: int, rank: int = 0, local_rank: int = 0) -> AssignedSlot:
    devices = tuple(4 * node.index + i for i in local_ids)
    return AssignedSlot(rank, node.index, local_rank, devices, local_ids, host=node)


NCCL = {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "2"}


@pytest.mark.parametrize(
    ("role", "seat", "expected"),
    [
        ("actor_train", on(FIRST, 0), {"OMP_NUM_THREADS": "24", **NCCL}),
        ("actor_infer", on(FIRST, 0, 1), {"OMP_NUM_THREADS": "24", **NCCL}),
        ("reference", on(SECOND, 0), {"OMP_NUM_THREADS": "1", **NCCL}),
        ("rewards.math", on(FIRST), {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}),
        ("actor_train", on(LAPTOP, 0), {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}),
    ],
    ids=["trainer", "engine-tp2", "fewer-cores-than-gpus", "reward-beside-gpus", "laptop"],
)
def test_threads_and_nccl_settings_of_each_kind_of_role(role: str, seat: AssignedSlot, expected: dict[str, str]):
    """All roles with GPUs agree about NCCL; a worker has its share of the cores where it has GPUs, one thread else."""
    common = {"ROLL_ROLE": role, RUN_MARK: RUN_ID, "TOKENIZERS_PARALLELISM": "false"}
    assert role_environment(role, {}, seat) == common | expected


def test_what_the_user_sets_wins():
    assert role_environment("critic", {"OMP_NUM_THREADS": "4"}, on(LAPTOP))["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize(("own", "left"), [({SHARES_GPUS: "1"}, {"PYTORCH_ALLOC_CONF": "a:1"}), ({}, None)])
def test_roles_that_share_gpus_start_without_expandable_segments(own: dict[str, str], left: dict[str, str] | None):
    """Whoever sets the flag: a shell or an image, which workers inherit, or system_envs."""
    inherited = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    own = own | {"PYTORCH_ALLOC_CONF": "a:1,expandable_segments:True"}
    variables = dict(inherited)
    cleared = begin_environment(variables, own)
    assert variables == (own | left if left is not None else inherited | own)
    assert cleared == ([] if left is None else ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])


def test_programs_of_the_environment_are_found_by_workers_with_gpus(monkeypatch: pytest.MonkeyPatch):
    """`make` calls .venv/bin/python without activating it; vLLM looks for ninja on PATH."""
    monkeypatch.setattr("sys.executable", "/code/.venv/bin/python")
    for gpus, path, expected in (
        ("0,1", "/usr/bin:/bin", "/usr/bin:/bin:/code/.venv/bin"),
        ("0", "/code/.venv/bin:/bin", "/code/.venv/bin:/bin"),
        ("", "/usr/bin", "/usr/bin"),
    ):
        variables = {"PATH": path}
        begin_environment(variables, {"CUDA_VISIBLE_DEVICES": gpus})
        assert variables["PATH"] == expected


def test_sglang_leaves_the_settings_of_nccl_to_those_of_all_roles():
    assert not NCCL.keys() & worker_environment(on_cpu=False).keys()


def test_gpus_of_a_node_have_the_same_order_in_every_run():
    assert in_order(["10", "2", "0"]) == in_order([2, 10, 0]) == ("0", "2", "10")
    assert in_order(["GPU-b", "GPU-a"]) == ("GPU-a", "GPU-b")


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


def test_an_engine_of_several_gpus_sees_them_all_and_no_rank():
    seat = on(SECOND, 0, 1)
    assert rank_environment([seat], seat, is_distributed=False) == {"CUDA_VISIBLE_DEVICES": "0,1"}


def test_workers_get_the_drivers_folders_and_the_code_before_the_path_of_their_node():
    folders = ["/code", "/runs/mine"]
    assert import_environment(folders, "/code", {}) == {
        "ROLL_IMPORT_FOLDERS": "/code:/runs/mine",
        "PYTHONPATH": "/code:${PYTHONPATH}",
    }
    assert import_environment(folders, "/code", {"PYTHONPATH": "/users"})["PYTHONPATH"] == "/code:/users"
    assert "PYTHONPATH" not in import_environment(folders, None, {"PYTHONPATH": "/users"})  # installed
