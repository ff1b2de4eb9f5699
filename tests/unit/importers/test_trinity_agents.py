"""Trinity-RFT's agents and environments are played in episodes here, or end as another run."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.commands.run import main
from roll.commands.table import main as roll
from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from tests.unit.importers.test_import import entry
from tests.unit.importers.test_verl_meaning import at

TASKS, SETS = "buffer.explorer_input.taskset", "buffer.explorer_input.eval_tasksets"
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
LAKE = f"{TASKS}.default_workflow_type=frozen_lake_workflow"
REACT = f"{TASKS}.default_workflow_type=agentscope_v2_react_math_workflow"
SHOP = f"{TASKS}.default_workflow_type=webshop_workflow"
STEPS = "buffer.total_steps=50"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(BASE))
    return tmp_path


def imported(place: Path, *words: str) -> Imported:
    return imported_from(read(place / "run.yaml", words), source=place / "run.yaml")


def test_a_frozen_lake_is_the_same_game_in_episodes(place: Path) -> None:
    args = (f"{TASKS}.workflow_args.max_steps=12", f"{TASKS}.workflow_args.is_slippery=true")
    found = imported(place, LAKE, STEPS, *args)
    assert found.pipeline == "agentic" and found.is_as_meant, (found.changes, found.unresolved)
    env, held_out = at(found, "custom_envs.Training"), at(found, "custom_envs.Validation")
    assert (env["env_type"], env["max_steps"]) == ("frozen_lake", 12)
    assert env["env_config"] == {"is_slippery": True, "maps": "training"}
    assert held_out["env_config"]["maps"] == "held_out" and held_out["max_steps"] == 12
    assert (at(found, "rollout_batch_size"), at(found, "sequence_length")) == (256, 3072)
    assert (at(found, "train_env_manager.num_env_groups"), at(found, "val_env_manager.group_size")) == (32, 4)
    assert at(found, "train_env_manager.episode_timeout_s") == 360.0
    assert "4 x 4 with one cell in five a hole" in entry(found, f"{TASKS}.default_workflow_type")[1]
    assert not {"rewards", "validation", "response_length", "global_template"} & found.tree.keys()


def test_a_game_without_rows_asks_for_its_steps(place: Path) -> None:
    assert imported(place, LAKE).unresolved == ("buffer.total_steps",)


def test_an_agent_for_mathematics_asks_the_rows_with_its_tool(place: Path) -> None:
    words = (f"{TASKS}.path=openai/gsm8k", f"{TASKS}.subset_name=main", f"{TASKS}.format.prompt_key=question")
    found = imported(place, REACT, *words, f"{TASKS}.format.response_key=answer")
    assert found.is_as_meant, found.changes
    env = at(found, "custom_envs.Training")
    assert (env["env_type"], env["tool_wrapper"]["tool_configs"]) == ("roll_math", [{"tool_id": "python_code"}])
    rows = {"dataset_name": "openai/gsm8k", "subset": "main", "split": "train"}
    assert env["env_config"] == rows | {"question_key": "question", "answer_key": "answer"}
    assert at(found, "num_train_epochs") == 2
    plain = imported(place, f"{TASKS}.default_workflow_type=as_react_workflow")
    assert at(plain, "custom_envs.Training.max_steps") == 1 and "tool_wrapper" not in at(plain, "custom_envs.Training")


def test_turns_of_an_episode_are_no_samples_of_their_own(place: Path) -> None:
    """640 turns of 32 x 8 episodes are trained on in one update, as there."""
    tree = imported(place, LAKE, STEPS, "buffer.train_batch_size=640").tree
    assert (tree["rollout_batch_size"], tree["max_steps"]) == (256, 50)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ((LAKE, f"{TASKS}.workflow_args.desc=[SFG]"), f"{TASKS}.workflow_args.desc"),
        ((LAKE, f"{SETS}.0.workflow_args.max_steps=5"), f"{SETS}.0.workflow_args.max_steps"),
        ((LAKE, f"{TASKS}.default_reward_fn_type=math_reward"), f"{TASKS}.default_reward_fn_type"),
        ((LAKE, f"{TASKS}.format.system_prompt=Walk."), f"{TASKS}.format.system_prompt"),
        ((REACT, f"{TASKS}.default_reward_fn_type=my.Reward"), f"{TASKS}.default_reward_fn_type"),
        ((REACT, f"{TASKS}.reward_fn_args.bonus=2"), f"{TASKS}.reward_fn_args.bonus"),
        (
            (REACT, "data_processor.task_pipeline.operators=[{name: length, args: {}}]"),
            "data_processor.task_pipeline.operators.0.name",
        ),
        ((f"{TASKS}.default_workflow_type=alfworld_workflow",), f"{TASKS}.default_workflow_type"),
    ],
)
def test_what_an_environment_cannot_say_makes_another_run(words: tuple[str, ...], key: str, place: Path) -> None:
    found = imported(place, *words)
    assert entry(found, key)[0] == "changes the run", entry(found, key)


def test_a_second_set_of_evaluation_is_told_as_lost(place: Path) -> None:
    more = f"{SETS}=[{{path: /d/a.jsonl}}, {{name: b, path: /d/b.jsonl}}]"
    assert entry(imported(place, LAKE, STEPS, more), f"{SETS}.1.path")[0] == "not available"


@pytest.mark.parametrize(
    "words",
    [
        (LAKE, STEPS),
        (LAKE, STEPS, f"{SETS}=[]", "explorer.over_rollout.ratio=0.25"),
        (LAKE, STEPS, "algorithm.algorithm_type=ppo", "algorithm.repeat_times=8"),
        (SHOP, STEPS, "explorer.dynamic_timeout.enable=true", "explorer.max_retry_times=2"),
        (REACT, "synchronizer.sync_style=dynamic_by_explorer", "synchronizer.sync_interval=2"),
        (REACT, "explorer.rollout_model.enable_thinking=false", f"{TASKS}.format.system_prompt=Think."),
    ],
)
def test_episodes_of_an_import_pass_a_dry_run(
    words: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = imported(place, *words)
    assert roll(["import", "run.yaml", *words, "--out", "my.yaml"]) == 0, (found.changes, found.unresolved)
    assert len(found.entries) == len({each.key for each in found.entries})
    code = main("agentic", ["--config_path", str(place), "--config_name", "my", "--dry_run", "--elsewhere"])
    shown = capsys.readouterr()
    assert code == 0, shown.err + (place / "my.yaml").read_text()
    assert "The plan works." in shown.out
    assert " do nothing" not in shown.out and "does nothing" not in shown.out, shown.out
