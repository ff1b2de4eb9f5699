"""A plan ends with 0 and "The plan works." where a run with what is here would start, and with 2 where it would not."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from roll.commands.table import main
from roll.configs.load.chosen_values import Machine
from roll.configs.problems import Problem
from roll.run.saving.checkpoint import CheckpointStore, write_state
from roll.run.start import machine as machine_module
from roll.run.start import preflight
from tests.helpers.cases import cases
from tests.helpers.configs import tree
from tests.unit.run.saving.test_resume_checks import saved

SHAPE = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "max_position_embeddings": 64}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(SHAPE))
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1", "ground_truth": "2", "tag": "math"}\n')
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree({"pretrain": "model", "track_with": "jsonl"})))
    return tmp_path


def plan(*words: str) -> int:
    return main(["plan", "run.yaml", *words])


def test_six_mistakes_of_six_kinds_are_told_at_once_by_plan_and_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = (
        "max_step=3",
        "rollout_batch_size=33",
        "tracker_kwargs.nonsense=1",
        "rewards.math.reward=my_reward:shaer",
        "actor_train.data_args.file_name=trian.jsonl",
        "pretrain=./modle",
    )
    (place / "my_reward.py").write_text("def share(sample): return 1.0\n")
    said = []
    for word in ("plan", "run"):
        assert main([word, "run.yaml", *wrong]) == 2
        said.append(capsys.readouterr().err)
    assert said[0] == said[1]
    for part in (
        "max_step: unknown key",
        "to a multiple of 8",
        "nonsense",
        "shaer",
        "trian",
        "modle",
    ):
        assert part in said[0], part


@cases("wrong, message")
def test_what_would_stop_a_run_fails_the_plan(
    place: Path, capsys: pytest.CaptureFixture[str], wrong: tuple[str, ...], message: str
) -> None:
    (place / "own_code.py").write_text("import not_there_either\n")
    assert plan() == 0, capsys.readouterr().err
    assert plan(*wrong) == 2
    shown = capsys.readouterr()
    assert message in shown.err and not shown.out.rstrip().endswith("The plan works.\n" * 2)


def test_a_program_that_cannot_be_imported_fails_the_plan(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "own_agent.py").write_text("import not_there_either\n")
    agentic = tree({"pretrain": "model", "track_with": "jsonl", "rewards": ..., "rollout_batch_size": 4})
    agentic |= {
        "pipeline": "agentic", "train_env_manager": {"num_env_groups": 2, "group_size": 2, "tags": ["A"]},
        "custom_envs": {"A": {"env_manager_cls": "proxy", "agent": "own_agent:play", "tasks": "train.jsonl"}},
    }  # fmt: skip
    (place / "run.yaml").write_text(yaml.safe_dump(agentic))
    assert plan() == 2
    assert "custom_envs.A.agent: own_agent:play: importing own_agent failed" in capsys.readouterr().err


def test_an_id_that_neither_the_cache_nor_the_hub_has_fails_the_plan(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("roll.models.hub._is_cached", lambda name, kind: False)
    assert plan("pretrain=modle") == 2
    said = capsys.readouterr().err
    assert "pretrain: modle is not on this machine" in said and "Did you mean the folder ./model?" in said
    assert plan("pretrain=modle", "--elsewhere") == 0
    assert "Not checked here: modle: not looked for" in capsys.readouterr().out


def test_a_package_of_a_reward_that_is_not_there_is_of_another_machine_only_if_the_plan_is(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("rewards.math.reward=trinity_reward", "rewards.math.reward_args.path=no_such_package.rewards.Reward")
    assert plan(*words) == 2
    capsys.readouterr()
    assert plan(*words, "--elsewhere") == 0
    assert (
        "Not checked here: rewards.math.reward_args: trinity_reward: path: no_such_package" in capsys.readouterr().out
    )
    (place / "own_rewards.py").write_text("import no_such_package\n")
    assert plan(words[0], "rewards.math.reward_args.path=own_rewards.Reward", "--elsewhere") == 2


def test_settings_that_the_checkpoint_does_not_let_change_fail_the_plan(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with CheckpointStore("out/checkpoints").writing(3) as directory:
        write_state(directory, saved(directory, {"pretrain": "model", "track_with": "jsonl"}).state)
    words = ("output_dir=out", "resume_from_checkpoint=true")
    assert plan(*words) == 0, capsys.readouterr().err
    assert plan(*words, "seed=7") == 2
    said = capsys.readouterr().err
    assert "seed: 42 -> 7 since the checkpoint" in said and "start anew in another output_dir" in said


def test_data_under_a_variable_that_is_not_set_are_not_checked(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MY_DATA", raising=False)
    given = "actor_train.data_args.file_name=${oc.env:MY_DATA}/train.jsonl"
    assert plan(given) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "Not checked here: actor_train.data_args.file_name: the variable MY_DATA is not set here." in shown
    assert shown.endswith("The plan works.\n")
    monkeypatch.setenv("MY_DATA", "nowhere")
    assert plan(given) == 2


@pytest.mark.parametrize("of", ["run", "place", "machine"])
def test_the_last_line_and_the_exit_code_agree_for_every_kind_of_problem(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], of: str
) -> None:
    """There is no finding that is told and neither stops the plan nor is called not checked."""
    found = Problem("a finding.", (), of)  # type: ignore[arg-type]
    monkeypatch.setattr(preflight, "_resume_problems", lambda config: iter([found]))
    for words in ((), ("--elsewhere",)):
        code, shown = plan(*words), capsys.readouterr()
        passes = of == "machine" or (of == "place" and bool(words))
        assert code == (0 if passes else 2)
        assert shown.out.endswith("The plan works.\n") == passes == ("Not checked here: a finding." in shown.out)
        assert ("  - a finding." in shown.err) == (not passes)


def test_a_role_without_devices_is_not_planned_for_the_cpu_of_a_machine_with_gpus(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without = ("actor_train.device_mapping=null", "actor_infer.device_mapping=null", "rollout_batch_size=64")
    on_cpu = ("actor_train.world_size=1", "actor_infer.world_size=1")
    assert plan(*without, "gpu_memory_gb=80", "num_gpus_per_node=null") == 2
    said = capsys.readouterr().err
    assert "actor_train.device_mapping is missing" in said and "gpu_memory_gb: 80 is for GPUs" in said
    monkeypatch.setattr(machine_module, "this_machine", lambda: Machine(num_gpus=4))
    assert plan(*without, "num_gpus_per_node=null", "--all") == 0, capsys.readouterr().err
    assert "node 0  0..3  actor_train, actor_infer (take turns)" in capsys.readouterr().out
    assert plan(*without, "num_gpus_per_node=2", "--all") == 0, capsys.readouterr().err
    assert "node 0  0..1  actor_train, actor_infer (take turns)" in capsys.readouterr().out
    assert plan(*without, *on_cpu) == 0, capsys.readouterr().err


def test_rows_that_do_not_fit_fail_the_plan_in_the_words_of_the_run(
    place: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"pretrain={tiny_model_dir}"
    assert plan(model) == 0
    assert plan(model, "prompt_length=2") == 2
    text = "1 of 1 prompts are longer than prompt_length = 2 tokens; the longest has "
    assert f"actor_train.data_args: {text}" in capsys.readouterr().err
    assert plan(model, "prompt_length=2", "actor_train.data_args.truncation=left") == 0


def test_a_model_without_a_chat_template_is_refused_for_all_rows_at_once(
    place: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = shutil.copytree(tiny_model_dir, place / "base")
    (base / "chat_template.jinja").unlink(missing_ok=True)
    file = base / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": None}))
    validation = "validation.data_args.file_name=train.jsonl"
    for word in ("plan", "run"):
        assert main([word, "run.yaml", "pretrain=base", validation]) == 2
        said = capsys.readouterr().err
        assert all(f"{role}.data_args.template: native, but" in said for role in ("actor_train", "validation"))
    assert plan("pretrain=base", validation, "global_template=plain") == 0
