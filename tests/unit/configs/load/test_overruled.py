"""What ROLL overrules itself is read as there, and said."""

from pathlib import Path
from typing import Any

import pytest

from roll.configs.load.loader import load_tree
from roll.configs.load.overruled_keys import FSDP2_KEYS, Overruled, overruled
from roll.configs.tables.roles import Role
from roll.pipeline.rlvr.rlvr_config import RLVRConfig

ROLES: dict[str, Role] = dict(RLVRConfig.role_table)


def read(**tree: Any) -> Overruled:
    return overruled(tree, ROLES)


def engine(size: int, **config: int) -> dict[str, Any]:
    return {"num_gpus_per_worker": size, "strategy_args": {"strategy_name": "vllm", "strategy_config": config}}


@pytest.mark.parametrize(
    ("section", "size"),
    [
        (engine(1, tensor_parallel_size=2), 2),
        (engine(8, tensor_parallel_size=2, pipeline_parallel_size=2), 4),
        ({"num_gpus_per_worker": 4, "strategy_args": {"strategy_name": "deepspeed_train"}}, 1),
    ],
)
def test_num_gpus_per_worker_is_what_the_sizes_say_with_a_warning(section: dict[str, Any], size: int) -> None:
    found = read(actor_infer=section)
    assert found.changed["actor_infer"]["num_gpus_per_worker"] == size and not found.problems
    (text,) = found.warnings
    assert f"actor_infer.num_gpus_per_worker: {section['num_gpus_per_worker']} is overruled: it is {size}" in text


@pytest.mark.parametrize("section", [engine(2), engine(2, tensor_parallel_size=2)])
def test_num_gpus_per_worker_that_contradicts_nothing_stays(section: dict[str, Any]) -> None:
    found = read(actor_infer=section)
    assert not found.changed and not found.warnings


def test_device_ids_overrule_num_nodes_and_the_plan_says_so() -> None:
    roles = {"actor_train": {"device_mapping": "list(range(0, 16))"}}
    found = read(num_nodes=1, **roles)
    assert found.changed["num_nodes"] == 2 and "num_nodes: 1 is overruled" in found.warnings[0]
    assert "num_nodes is not set" in read(**roles).warnings[0]
    assert read(num_nodes=3, **roles).warnings == []


def test_students_and_teachers_by_name_overrule_num_nodes_as_well() -> None:
    far = {"device_mapping": "list(range(8, 16))"}
    assert read(num_nodes=1, student_train={"device_mapping": "list(range(0, 16))"}).changed["num_nodes"] == 2
    assert read(num_nodes=1, actor_train={"device_mapping": [0]}, teacher={"large": far}).changed["num_nodes"] == 2


def test_a_node_that_nothing_is_on_is_not_planned_in_silence() -> None:
    lonely = {"num_gpus_per_node": 2, "actor_infer": {"device_mapping": [5]}}
    for given in ({}, {"num_nodes": 1}):
        (problem,) = read(**lonely, **given).problems
        assert "no role is on node 0..1" in problem.text and "num_nodes: 3" in problem.text
    assert read(**lonely, num_nodes=3).problems == []
    one_node = read(num_gpus_per_node=2, actor_train={"device_mapping": [0]}, actor_infer={"device_mapping": [1]})
    assert one_node == Overruled()


@pytest.mark.parametrize("path", FSDP2_KEYS)
def test_keys_of_newer_recipes_for_fsdp2_are_taken_out_and_the_nearest_thing_is_named(path: str) -> None:
    outer, _, key = path.rpartition(".")
    config = {outer: {key: 8}} if outer else {key: 8}
    section = {"strategy_args": {"strategy_name": "fsdp2_train", "strategy_config": {"fsdp_size": 4, **config}}}
    found = read(actor_train=section)
    left = found.changed["actor_train"]["strategy_args"]["strategy_config"]
    assert left == {"fsdp_size": 4, **({outer: {}} if outer else {})}
    assert f"actor_train.strategy_args.strategy_config.{path} does nothing here: " in found.warnings[0]


@pytest.mark.parametrize("given", ["linear_qkv,linear_fc2", ["linear_qkv", "linear_fc2"]])
def test_adapters_on_layers_of_transformer_engine_go_on_those_of_the_files(given: object) -> None:
    found = read(actor_train={"model_args": {"lora_target": given}})
    assert found.changed["actor_train"]["model_args"]["lora_target"] == ["q_proj", "k_proj", "v_proj", "down_proj"]
    assert "linear_qkv: q_proj, k_proj, v_proj; linear_fc2: down_proj get adapters" in found.warnings[0]


def test_an_empty_fragment_is_an_empty_mapping(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [empty@_here_]\nmax_steps: 3\n")
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    assert load_tree(tmp_path, "mine", (), RLVRConfig).settings["max_steps"] == 3
