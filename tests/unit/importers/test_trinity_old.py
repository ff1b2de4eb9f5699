"""Trinity-RFT's older ways, and what evaluates: the same run, or told."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.commands.table import main as roll
from roll.importers.command import imported_from
from roll.importers.convert import read
from tests.helpers.cases import cases
from tests.unit.importers.test_import import entry
from tests.unit.importers.test_verl_meaning import at

TASKS = "buffer.explorer_input.taskset"
BASE: dict[str, Any] = {
    "project": "games",
    "name": "lake",
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 8},
    "model": {"model_path": "org/model", "max_prompt_tokens": 2048, "max_response_tokens": 1024},
    "cluster": {"node_num": 1, "gpu_per_node": 8},
    "buffer": {
        "batch_size": 32,
        "total_epochs": 2,
        "explorer_input": {
            "taskset": {"storage_type": "file", "path": "/d/train.jsonl", "split": "train"},
            "eval_tasksets": [{"path": "/d/test.jsonl", "rollout_args": {"n": 4}}],
        },
    },
    "explorer": {
        "eval_interval": 10,
        "max_timeout": 360,
        "rollout_model": {"engine_num": 2, "tensor_parallel_size": 2},
    },
}
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


def test_keys_of_the_very_first_version_are_read_too(place: Path) -> None:
    data = {**OLD["data"], "total_epoch": 3, "format_config": {"prompt_key": "q", "response_key": "a"}}
    for name in ("total_epochs", "format"):
        del data[name]
    tree = {**OLD, "data": data, "explorer": {**OLD["explorer"], "top_p": 0.9, "top_k": 20}}
    tree |= {
        "model": {**OLD["model"], "load_checkpoint": False},
        "trainer": {**OLD["trainer"], "sft_warmup_iteration": 0},
    }
    (place / "old.yaml").write_text(yaml.safe_dump(tree))
    found = imported_from(read(place / "old.yaml"), source=place / "old.yaml")
    assert found.is_as_meant, found.changes
    assert (found.tree["num_train_epochs"], found.tree["resume_from_checkpoint"]) == (3, False)
    assert at(found, "actor_train.data_args.prompt") == "q"
    sampling = at(found, "actor_infer.generating_args")
    assert (sampling["top_p"], sampling["top_k"]) == (0.9, 20)


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


def test_references_in_the_file_of_verls_keys_are_to_itself(place: Path) -> None:
    (place / "run.yaml").write_text(yaml.safe_dump(BASE))
    reference = "${actor_rollout_ref.actor.ulysses_sequence_parallel_size}"
    actor = {"ulysses_sequence_parallel_size": 2}
    ref = {"ulysses_sequence_parallel_size": reference}
    (place / "train.yaml").write_text(yaml.safe_dump({"actor_rollout_ref": {"actor": actor, "ref": ref}}))
    found = imported_from(
        read(place / "run.yaml", ["trainer.trainer_config_path=train.yaml"]), "trinity", place / "run.yaml"
    )
    assert found.unresolved == () and "$" not in yaml.safe_dump(found.tree)


def test_trainer_and_engines_of_one_place_take_turns(place: Path) -> None:
    (place / "run.yaml").write_text(yaml.safe_dump(BASE))
    found = imported_from(read(place / "run.yaml", ["mode=colocate"]), source=place / "run.yaml")
    assert found.is_as_meant and "mode" not in found.tree
    assert {at(found, f"{role}.device_mapping") for role in ("actor_train", "actor_infer")} == {"list(range(0, 8))"}


def test_an_evaluation_of_mathematics_is_scored_as_training_in_mathematics_is(place: Path) -> None:
    (place / "run.yaml").write_text(yaml.safe_dump(BASE))
    key = "buffer.explorer_input.default_eval_workflow_type"
    for flow, outcome in (("math_boxed_workflow", "approximated"), ("simple_workflow", "not available")):
        words = [f"{TASKS}.default_workflow_type={flow}", f"{key}=math_eval_workflow"]
        found = imported_from(read(place / "run.yaml", words), source=place / "run.yaml")
        assert entry(found, key)[0] == outcome, entry(found, key)


def test_a_yaml_of_the_first_versions_is_told_in_a_line(place: Path) -> None:
    more = {"trainer": {**OLD["trainer"], "eval_interval": 10, "sft_warmup_steps": 0}}
    more["synchronizer"] = {"sync_method": "checkpoint", "sync_iteration_interval": 10}
    (place / "old.yaml").write_text(yaml.safe_dump({**OLD, **more}))
    found = imported_from(read(place / "old.yaml"), source=place / "old.yaml")
    assert any("Trinity-RFT before 0.2" in note for note in found.notes)
    assert not any("does not know" in each.note for each in found.entries)
    (place / "new.yaml").write_text(yaml.safe_dump(BASE))
    new = imported_from(read(place / "new.yaml"), source=place / "new.yaml")
    assert not any("before 0.2" in note for note in new.notes)


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_the_name_of_the_monitor_is_that_of_the_run(kind: str) -> None:
    path = Path(__file__).parents[2] / "importers" / f"trinity_{kind}.yaml"
    found = imported_from(read(path, ["name=null", "monitor.name=mine", "monitor.project=sums"]), source=path)
    assert at(found, "exp_name") == "mine" and entry(found, "monitor.project")[0] != "changes the run"


@cases("kind, key, outcome")
def test_embedded_keys_of_verls_trainer_are_told_as_what_they_are(kind: str, key: str, outcome: str) -> None:
    path = Path(__file__).parents[2] / "importers" / f"trinity_{kind}.yaml"
    word = f"trainer.trainer_config.{key}"
    found = imported_from(read(path, [word]), source=path)
    assert entry(found, word.partition("=")[0])[0] == outcome
