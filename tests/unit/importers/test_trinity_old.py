"""Trinity-RFT's files of verl's keys, and what evaluates: the same run, or told."""

from pathlib import Path
from typing import Any

import pytest
import yaml

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


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
