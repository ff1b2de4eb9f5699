"""Who sits where, and the placements that cannot work."""

from typing import Any

import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.configs.problems import ids_text
from tests.helpers.configs import config, problems


def test_ids_are_node_times_size_plus_position() -> None:
    made = config({"num_nodes": 2, "actor_infer.device_mapping": [7, 8, 15]})
    places = build_plan(made).layout["actor_infer"].workers
    assert [(place.node, place.local_ids) for place in places] == [(0, (7,)), (1, (0,)), (1, (7,))]


def test_roles_on_the_same_or_nested_devices_share_and_others_are_disjoint() -> None:
    layout = build_plan(config({"actor_infer.device_mapping": [0, 1, 2, 3]})).layout
    assert layout.shared() == (("actor_train", "actor_infer", (0, 1)),)
    assert build_plan(config()).layout.shared() == ()


def test_a_role_shares_devices_with_any_that_has_one_of_its_own() -> None:
    layout = build_plan(config({"actor_infer.device_mapping": [0, 1, 2, 3]})).layout
    assert layout.shares_devices("actor_train") and layout.shares_devices("actor_infer")
    assert not layout.shares_devices("rewards.math")
    assert not build_plan(config()).layout.shares_devices("actor_infer")


def test_workers_of_a_role_without_devices_are_spread_over_the_nodes() -> None:
    places = build_plan(config({"rewards.math.world_size": 3, "num_nodes": 2})).layout["rewards.math"].workers
    assert [(place.rank, place.node, place.local_rank, place.devices) for place in places] == [
        (0, 0, 0, ()),
        (1, 0, 1, ()),
        (2, 1, 0, ()),
    ]


def test_workers_of_several_devices_are_counted_on_their_node() -> None:
    changes = {"num_nodes": 2, "actor_infer.device_mapping": [4, 5, 6, 7, 8, 9], "actor_infer.num_gpus_per_worker": 2}
    places = build_plan(config(changes)).layout["actor_infer"].workers
    assert [(place.node, place.local_rank, place.devices, place.local_ids) for place in places] == [
        (0, 0, (4, 5), (4, 5)),
        (0, 1, (6, 7), (6, 7)),
        (1, 0, (8, 9), (0, 1)),
    ]


@pytest.mark.parametrize(
    ("changes", "nodes"),
    [
        ({}, 1),
        ({"actor_infer.device_mapping": "list(range(8,16))"}, 2),
        ({"actor_infer.device_mapping": [16]}, 3),
        ({"num_gpus_per_node": 2, "actor_infer.device_mapping": [2, 3]}, 2),
        ({"num_nodes": None, "actor_infer.device_mapping": [8]}, 2),
        ({"num_nodes": 4}, 4),
    ],
)
def test_the_number_of_nodes_follows_from_the_largest_id_unless_it_is_given(
    changes: dict[str, Any], nodes: int
) -> None:
    assert problems(changes) == []
    assert config(changes).num_nodes == nodes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_nodes": 1, "actor_train.device_mapping": "list(range(8,16))"},
            "actor_train.device_mapping uses devices 8..15, but the run has 1 node of 8 (0..7). Set num_nodes: 2 (or "
            "leave it out), or use ids up to 7.",
        ),
        ({"actor_train.device_mapping": [0, 0]}, "actor_train.device_mapping names device 0 more than once."),
        (
            {"actor_infer.device_mapping": [2, 3, 4], "actor_infer.num_gpus_per_worker": 2},
            "actor_infer.device_mapping has 3 devices, which do not divide by actor_infer.num_gpus_per_worker: 2. "
            "Use 2 or 4 devices",
        ),
        (
            {"actor_infer.device_mapping": [1, 2]},
            "actor_train.device_mapping (0..1) and actor_infer.device_mapping (1..2) share only 1: roles take turns on "
            "devices only if one's devices are all among the other's.",
        ),
        (
            {"num_nodes": 2, "actor_infer.device_mapping": [7, 8], "actor_infer.num_gpus_per_worker": 2},
            "actor_infer.device_mapping: worker 0 would have devices 7..8 on nodes 0..1; a worker cannot span nodes of "
            "8.",
        ),
        (
            {"actor_train.world_size": 3},
            "actor_train.world_size: 3 contradicts actor_train.device_mapping: its 2 devices, 1 per worker "
            "(num_gpus_per_worker), make 2 workers. Remove world_size.",
        ),
        (
            {"num_nodes": 2, "actor_infer.device_mapping": [8], "weight_sync_route": "memory"},
            "weight_sync_route: memory works between processes of one node, but actor_infer is on node 1, where ",
        ),
    ],
)
def test_a_placement_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    found = problems(changes)
    assert len(found) == 1 and found[0].startswith(message)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([0], "0"),
        ([0, 1], "0..1"),
        ([0, 1, 2, 3, 8], "0..3, 8"),
        ([0, 2, 4, 6], "0..6 by 2"),
        ([0, 2], "0, 2"),
        ([5, 3], "5, 3"),
        ([3, 2, 1], "3, 2, 1"),
        ([], ""),
    ],
)
def test_ids_are_written_in_runs(ids: list[int], text: str) -> None:
    assert ids_text(ids) == text
