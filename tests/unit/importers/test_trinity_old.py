"""Trinity-RFT's older ways, and what evaluates: the same run, or told."""

from pathlib import Path

import pytest
import yaml

from roll.commands import main as roll
from roll.importers.command import imported_from
from roll.importers.given import read
from tests.unit.importers.test_import import entry
from tests.unit.importers.test_trinity_agents import BASE, TASKS
from tests.unit.importers.test_verl_meaning import at

OLD = {
    "data": {
        "total_epochs": 20,
        "batch_size": 8,
        "dataset_path": "data/sums",
        "default_workflow_type": "math_workflow",
        "train_split": "train",
        "eval_split": "",
        "format": {"prompt_key": "question", "response_key": "answer"},
    },
    "model": {
        "model_path": "org/model",
        "max_prompt_tokens": 256,
        "max_response_tokens": 1024,
        "checkpoint_path": "checkpoints/sums",
    },
    "cluster": {"node_num": 1, "gpu_per_node": 8},
    "buffer": {"max_retry_times": 3, "train_dataset": {"name": "b", "storage_type": "queue", "path": "sqlite:///b.db"}},
    "explorer": {
        "engine_type": "vllm_async", "engine_num": 2, "runner_num": 8, "tensor_parallel_size": 2, "repeat_times": 4,
        "temperature": 0.9, "seed": 42, "logprobs": 0, "use_ray": False, "backend": "nccl", "max_pending_requests": 32,
        "max_waiting_steps": 4, "gpu_memory_utilization": 0.7, "enforce_eager": True, "dtype": "bfloat16",
    },
    "synchronizer": {"sync_method": "nccl", "sync_interval": 8},
    "trainer": {"trainer_type": "verl", "algorithm_type": "ppo", "save_interval": 10},
    "monitor": {"cache_root_dir": "", "project": "sums", "name": "first"},
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_keys_of_the_first_versions_mean_what_they_are_called_now(place: Path) -> None:
    (place / "old.yaml").write_text(yaml.safe_dump(OLD))
    found = imported_from(read(place / "old.yaml"), source=place / "old.yaml")
    assert found.is_as_meant, found.changes
    tree = found.tree
    assert (tree["adv_estimator"], tree["num_train_epochs"], tree["exp_name"]) == ("gae", 20, "first")
    assert (tree["rollout_batch_size"], tree["num_return_sequences_in_group"]) == (8, 4)
    assert at(found, "actor_train.data_args.file_name") == ["data/sums"]
    assert at(found, "actor_train.data_args.prompt") == "question"
    assert at(found, "actor_infer.generating_args.temperature") == 0.9
    assert at(found, "actor_infer.strategy_args.strategy_config.gpu_memory_utilization") == 0.7
    assert {each.key for each in found.entries} >= {"data.dataset_path", "explorer.repeat_times", "monitor.project"}
    assert not any("does not know" in each.note for each in found.entries)
    assert roll(["import", "old.yaml", "--out", "my.yaml"]) == 0


def test_the_file_of_verls_keys_beside_the_yaml_is_read(place: Path) -> None:
    (place / "run.yaml").write_text(yaml.safe_dump(BASE))
    words = ["trainer.trainer_config_path=examples/games/train.yaml", "trainer.grad_clip=0.5"]
    key = "trainer.trainer_config_path"
    lost = imported_from(read(place / "run.yaml", words), source=place / "run.yaml")
    assert entry(lost, key)[0] == "changes the run"
    actor = {"ppo_epochs": 2, "grad_clip": 3.0, "optim": {"lr_warmup_steps_ratio": 0.1}}
    (place / "train.yaml").write_text(yaml.safe_dump({"actor_rollout_ref": {"actor": actor}}))
    found = imported_from(read(place / "run.yaml", words), source=place / "run.yaml")
    assert entry(found, key) == ("asks for nothing", "the file beside this one is read") and found.is_as_meant
    assert (found.tree["ppo_epochs"], found.tree["max_grad_norm"]) == (2, 0.5)
    assert at(found, "actor_train.training_args.warmup_ratio") == 0.1


def test_trainer_and_engines_of_one_place_take_turns(place: Path) -> None:
    (place / "run.yaml").write_text(yaml.safe_dump(BASE))
    found = imported_from(read(place / "run.yaml", ["mode=colocate"]), source=place / "run.yaml")
    assert found.is_as_meant and "mode" not in found.tree
    assert {at(found, f"{role}.device_mapping") for role in ("actor_train", "actor_infer")} == {"list(range(0, 8))"}


def test_an_evaluation_of_mathematics_is_scored_as_training_in_mathematics_is(place: Path) -> None:
    (place / "run.yaml").write_text(yaml.safe_dump(BASE))
    key = "buffer.explorer_input.default_eval_workflow_type"
    for flow, outcome in (("math_boxed_workflow", "approximated"), ("simple_workflow", "not to be had")):
        words = [f"{TASKS}.default_workflow_type={flow}", f"{key}=math_eval_workflow"]
        found = imported_from(read(place / "run.yaml", words), source=place / "run.yaml")
        assert entry(found, key)[0] == outcome, entry(found, key)
