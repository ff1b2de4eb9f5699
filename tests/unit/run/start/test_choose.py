"""What roll chooses for a YAML that says little, on machines with and without GPUs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.configs.load.chosen_values import Chosen, Machine
from roll.errors import ConfigError
from roll.run.kind import kind_of
from roll.run.start import machine as machine_module
from roll.run.start.load import Loaded, load
from tests.helpers.cases import cases

RLVR: dict[str, Any] = {
    "pretrain": "org/model-0.5B",
    "actor_train": {"data_args": {"file_name": "train.jsonl"}},
    "rewards": {"math": {"reward": "math_rule"}},
}
AGENTIC: dict[str, Any] = {"pretrain": "org/model-0.5B", "custom_envs": {"lake": {"env_type": "frozen_lake"}}}
ALL = frozenset({"vllm", "sglang", "deepspeed"})
EIGHT = Machine(8, 80e9, ALL)
ARGS = "actor_train.training_args"
Plan = Callable[..., Loaded]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    def made(tree: dict[str, Any], machine: Machine = EIGHT, *overrides: str) -> Loaded:
        monkeypatch.setattr(machine_module, "this_machine", lambda: machine)
        (tmp_path / "small.yaml").write_text(yaml.safe_dump(tree))
        return load(kind_of(tree), tmp_path, "small", overrides)

    return made


def chosen(loaded: Loaded) -> dict[str, Chosen]:
    return {choice.key: choice for choice in loaded.chosen}


def test_model_data_and_reward_are_a_whole_run_on_a_machine_with_gpus(plan: Plan) -> None:
    loaded = plan(RLVR)
    config = loaded.config
    assert config.num_gpus_per_node == 8
    assert [role.device_mapping for role in config.model_roles.values()] == [tuple(range(8))] * 2
    assert [role.strategy_name for role in config.model_roles.values()] == ["deepspeed_train", "vllm"]
    assert (config.value("adv_estimator"), config.value("num_return_sequences_in_group")) == ("grpo", 8)
    assert config.value(f"{ARGS}.learning_rate") == 1e-6
    train = loaded.plan.trains["actor_train"]
    assert (train.updates_per_step, train.samples_per_update) == (1, 1024)
    assert (config.value("prompt_length"), config.value("response_length")) == (1024, 2048)


def test_model_and_environment_are_a_whole_agentic_run(plan: Plan) -> None:
    loaded = plan(AGENTIC)
    manager = loaded.config.value("train_env_manager")
    assert (manager.tags, manager.group_size, manager.num_env_groups) == (("lake",), 8, 16)
    assert loaded.config.trained_length == 4096
    assert loaded.plan.trains["actor_train"].updates_per_step == 1


@pytest.mark.parametrize("tree", [RLVR, AGENTIC])
def test_without_gpus_each_role_has_a_worker_on_the_cpu(plan: Plan, tree: dict[str, Any]) -> None:
    config = plan(tree, Machine(packages=ALL)).config
    assert [role.strategy_name for role in config.model_roles.values()] == ["deepspeed_train", "hf_infer"]
    assert all(role.device_mapping is None and role.num_workers == 1 for role in config.model_roles.values())


@pytest.mark.parametrize(
    ("packages", "engine", "trainer"),
    [
        (ALL, "vllm", "deepspeed_train"),
        ({"sglang"}, "sglang", "fsdp2_train"),
        ({"deepspeed"}, "hf_infer", "deepspeed_train"),
    ],
)
def test_backends_are_what_is_installed(plan: Plan, packages: set[str], engine: str, trainer: str) -> None:
    loaded = plan(RLVR, Machine(8, 80e9, frozenset(packages)))
    roles = loaded.config.model_roles
    assert (roles["actor_infer"].strategy_name, roles["actor_train"].strategy_name) == (engine, trainer)
    assert "installed" in chosen(loaded)["actor_infer.strategy_args"].described


def test_large_weights_are_divided_by_trainer_and_engine(plan: Plan) -> None:
    """32 B parameters in bf16 are 64 GB: a share of 24 GB of each GPU has room for a quarter of them."""
    roles = plan({**RLVR, "pretrain": "org/model-32B"}).config.model_roles
    assert roles["actor_train"].strategy_config["zero_optimization"]["stage"] == 3
    assert (roles["actor_infer"].num_gpus_per_worker, roles["actor_infer"].num_workers) == (4, 2)
    small = plan(RLVR).config.model_roles
    assert small["actor_train"].strategy_config["zero_optimization"]["stage"] == 2
    assert small["actor_infer"].num_gpus_per_worker == 1


def test_what_the_yaml_says_stays(plan: Plan) -> None:
    loaded = plan(
        RLVR, EIGHT, f"{ARGS}.learning_rate=5e-5", f"{ARGS}.gradient_accumulation_steps=2", "response_length=100",
        "num_return_sequences_in_group=4", "actor_train.device_mapping=[0,1]", "num_gpus_per_node=4",
        "actor_infer.strategy_args.strategy_name=sglang", "actor_infer.device_mapping=[2]",
        "actor_train.strategy_args.strategy_name=fsdp2_train", "rollout_batch_size=64",
    )  # fmt: skip
    assert not loaded.chosen
    assert loaded.config.value(f"{ARGS}.learning_rate") == 5e-5


def test_a_default_that_is_another_than_rolls_says_so(plan: Plan) -> None:
    choices = chosen(plan(RLVR))
    assert choices[f"{ARGS}.learning_rate"].text == "1e-6, ROLL's default is 5e-5"
    assert choices[f"{ARGS}.gradient_accumulation_steps"].text == "16, ROLL's default is 1"
    assert choices["num_return_sequences_in_group"].text == "8, ROLL's default is 1"


def test_adapters_and_critics_have_rates_of_their_own(plan: Plan) -> None:
    lora = {"model_args": {"lora_target": "q_proj", "lora_rank": 8}}
    critic = {"critic": {}, "actor_train": {**RLVR["actor_train"], **lora}}
    config = plan({**RLVR, **critic}).config
    assert config.value(f"{ARGS}.learning_rate") == 1e-5
    assert config.value("critic.training_args.learning_rate") == 1e-5
    assert config.value("num_return_sequences_in_group") == 1, "gae compares with a critic, not within a group"


@pytest.mark.parametrize(("gpus", "groups"), [(1, 128), (2, 128), (3, 126), (5, 125), (6, 126), (7, 126), (8, 128)])
def test_prompts_and_updates_split_over_any_number_of_gpus(plan: Plan, gpus: int, groups: int) -> None:
    loaded = plan(RLVR, Machine(gpus, 80e9, ALL))
    train = loaded.plan.trains["actor_train"]
    assert (loaded.config.value("rollout_batch_size"), train.dp_size) == (groups, gpus)
    assert train.updates_per_step == 1 and train.splits_evenly


def test_numbers_that_the_yaml_gives_are_kept(plan: Plan) -> None:
    loaded = plan(RLVR, Machine(6, 80e9, ALL), "rollout_batch_size=32")
    assert loaded.config.value("actor_train.device_mapping") == (0, 1, 2, 3)
    assert "less 2 over which it does not split evenly" in chosen(loaded)["actor_train.device_mapping"].described
    train = plan(RLVR, EIGHT, f"{ARGS}.per_device_train_batch_size=2").plan.trains["actor_train"]
    assert (train.micro_batch_size, train.accumulation, train.updates_per_step) == (2, 64, 1)
    strategy = {"strategy_name": "vllm", "strategy_config": {"max_model_len": 1536}}
    config = plan({**RLVR, "actor_infer": {"strategy_args": strategy}}).config
    assert (config.value("prompt_length"), config.value("response_length")) == (768, 768)
    config = plan(RLVR, Machine(packages=ALL), "num_nodes=2", "num_gpus_per_node=4").config
    assert config.value("actor_train.device_mapping") == tuple(range(8))
    on_cpu = plan(RLVR, Machine(packages=ALL), "num_nodes=1").config
    assert on_cpu.value("actor_train.device_mapping") is None
    assert plan(RLVR, Machine(4, 80e9, ALL), "num_nodes=1").config.value("actor_train.device_mapping") == (0, 1, 2, 3)
    config = plan(RLVR, Machine(4, 80e9, ALL), "num_nodes=2").config
    assert (config.num_gpus_per_node, len(config.value("actor_infer.device_mapping"))) == (4, 8)
    with pytest.raises(ConfigError, match="do not split into updates of "):
        plan(RLVR, EIGHT, "rollout_batch_size=3", f"{ARGS}.per_device_train_batch_size=16")


@pytest.mark.parametrize(
    ("positions", "lengths"), [(64, (32, 32)), (2048, (1024, 1024)), (4096, (1024, 2048)), (40960, (1024, 2048))]
)
def test_lengths_stay_within_the_positions_of_the_model(
    plan: Plan, tmp_path: Path, positions: int, lengths: tuple[int, int]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "new", "max_position_embeddings": positions}))
    config = plan({**RLVR, "pretrain": str(model)}, EIGHT).config
    assert (config.value("prompt_length"), config.value("response_length")) == lengths
    on_cpu = plan({**RLVR, "pretrain": str(model)}, Machine(packages=ALL)).config
    assert on_cpu.value("response_length") == min(lengths[1], 128)


def test_a_step_on_cpus_is_small_unless_the_yaml_says_otherwise(plan: Plan) -> None:
    sizes = ("rollout_batch_size", "response_length")

    def found(tree: dict[str, Any], machine: Machine, *words: str) -> list[int]:
        return [plan(tree, machine, *words).config.value(key) for key in sizes]

    laptop = Machine(packages=ALL)
    assert found(RLVR, laptop) == [4, 128]
    assert found(RLVR, laptop, "rollout_batch_size=64", "response_length=500") == [64, 500]
    assert found(RLVR, EIGHT) == found(RLVR, laptop, "num_gpus_per_node=8") == [128, 2048]
    assert found(RLVR, EIGHT, "actor_train.world_size=1", "actor_infer.world_size=1") == [4, 128]
    devices = ("actor_train.device_mapping=[0]", "actor_infer.device_mapping=[0]")
    assert found(RLVR, laptop, *devices) == [128, 2048], "slots of a YAML for another machine"


@cases("words, threads")
def test_workers_that_compute_at_the_same_time_share_the_cores(
    plan: Plan, words: tuple[str, ...], threads: dict[str, str]
) -> None:
    loaded = plan(RLVR, Machine(packages=ALL, num_cores=8), *words)
    found = {key: choice.value for key, choice in chosen(loaded).items() if key.endswith("OMP_NUM_THREADS")}
    assert found == {f"{role}.system_envs.OMP_NUM_THREADS": count for role, count in threads.items()}
    for role, count in threads.items():
        assert loaded.config.value(f"{role}.system_envs")["OMP_NUM_THREADS"] == count
    on_gpus = plan(RLVR, replace(EIGHT, num_cores=8))
    assert not [key for key in chosen(on_gpus) if "OMP" in key]


@pytest.mark.parametrize(("here", "asked"), [(0, 1), (0, 8), (1, 8), (4, 8)])
def test_engines_of_gpus_that_are_elsewhere_are_those_of_gpus(plan: Plan, here: int, asked: int) -> None:
    loaded = plan(RLVR, Machine(here, 80e9 if here else None), f"num_gpus_per_node={asked}")
    assert loaded.config.model_roles["actor_infer"].strategy_name == "vllm"
    assert "another machine" in chosen(loaded)["actor_infer.strategy_args"].described
    slots = ("actor_train.device_mapping=[0]", "actor_infer.device_mapping=[1]", "rollout_batch_size=64")
    on_slots = plan(RLVR, Machine(), "num_gpus_per_node=2", *slots).config
    assert on_slots.model_roles["actor_infer"].strategy_name == "hf_infer", "devices of a machine without GPUs"


@pytest.mark.parametrize(("gpus", "per_node"), [(2, 2), (1, 8), (16, 8)])
def test_a_run_that_names_devices_of_this_machine_asks_for_no_more_of_a_node(
    plan: Plan, gpus: int, per_node: int
) -> None:
    """A node of 8, where nothing else is said, would never be there on a machine of 2."""
    named = ("actor_train.device_mapping=[0]", "actor_infer.device_mapping=[1]", "rollout_batch_size=64")
    assert plan(RLVR, Machine(gpus, 80e9, ALL), *named).config.num_gpus_per_node == per_node


def test_environments_of_the_validation_alone_are_not_trained_on(plan: Plan) -> None:
    envs = {"train": {"env_type": "frozen_lake"}, "test": {"env_type": "frozen_lake"}}
    tree = {**AGENTIC, "custom_envs": envs, "val_env_manager": {"tags": ["test"]}}
    assert plan(tree).config.value("train_env_manager.tags") == ("train",)


def test_sft_has_devices_and_a_trainer_too_and_its_own_rate(plan: Plan) -> None:
    tree = {"pipeline": "sft", "pretrain": "org/m-1B", "sft_train": {"data_args": {"file_name": "a.jsonl"}}}
    config = plan(tree, Machine(2, 80e9, ALL)).config
    worker = config.model_roles["sft_train"]
    assert (worker.device_mapping, worker.strategy_name) == ((0, 1), "deepspeed_train")
    assert worker.training_args.learning_rate == 5e-5


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 4), ("", 0), ("-1", 0), ("1", 1), ("0,2", 2), ("0,-1,2", 1), ("GPU-a,GPU-b", 2)]
)
def test_the_gpus_that_a_process_sees_are_counted(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    monkeypatch.setattr(machine_module, "_sizes", lambda: ["81559"] * 4)
    assert machine_module.num_visible_gpus(visible) == count
    monkeypatch.setattr(machine_module, "_sizes", list)
    assert machine_module.num_visible_gpus(visible) == 0
