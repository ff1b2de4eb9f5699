"""`roll eval`: the call that it makes of its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.commands import evaluate
from roll.errors import ConfigError

Call = tuple[str, list[str], bool, bool, str | None]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    found: list[Call] = []

    def start_yaml(config: str, overrides: list[str], is_plan: bool, elsewhere: bool, pipeline: str | None) -> int:
        found.append((config, overrides, is_plan, elsewhere, pipeline))
        return 2 if "max_steps=0" in overrides else 0

    monkeypatch.setattr(evaluate, "start_yaml", start_yaml)
    return found


def test_a_yaml_runs_in_mode_bench_with_the_checkpoint_that_is_named(calls: list[Call]) -> None:
    words = ["runs/sums.yaml", "--checkpoint", "out/step_000050", "val_batch_size=4"]
    assert evaluate.run(words) == []
    given = ["val_batch_size=4", "mode=bench", "resume_from_checkpoint=out/step_000050"]
    assert calls == [("runs/sums.yaml", given, False, False, None)]


def test_without_a_checkpoint_the_model_of_the_yaml_is_measured(calls: list[Call]) -> None:
    evaluate.run(["sums.yaml", "--pipeline", "agentic", "--dry_run"])
    assert calls == [("sums.yaml", ["mode=bench"], True, False, "agentic")]


def test_the_kind_of_an_evaluation_is_inferred_as_that_of_a_run_is(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).resolve().parents[3] / "examples" / "tiny-frozen-lake" / "tiny_frozen_lake.yaml"
    assert evaluate.run([str(path), "--dry_run", "--elsewhere"]) == []
    assert capsys.readouterr().out.endswith("The plan works.\n")


def test_a_yaml_that_is_not_there_is_named_as_it_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate.run(["nofile.yaml"])
    said = capsys.readouterr().err
    assert "nofile.yaml does not exist" in said and "--config_name" not in said


def test_the_exit_code_is_that_of_the_run(calls: list[Call]) -> None:
    with pytest.raises(SystemExit) as ended:
        evaluate.run(["sums.yaml", "max_steps=0"])
    assert ended.value.code == 2


def test_an_option_that_is_none_is_told(calls: list[Call]) -> None:
    with pytest.raises(ConfigError, match="--checkpiont=x: unknown option"):
        evaluate.run(["sums.yaml", "--checkpiont=x"])
    assert calls == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mode=train"], "mode=train: roll eval sets mode itself"),
        (["+mode=explore"], "mode=explore: roll eval sets mode itself"),
        (["--checkpoint", "true", "resume_from_checkpoint=a"], "sets mode and resume_from_checkpoint itself"),
        (["--checkpoint", ""], "--checkpoint is empty"),  # of a shell's variable that is not set: not the base model
    ],
)
def test_words_without_effect_are_refused(words: list[str], said: str, calls: list[Call]) -> None:
    with pytest.raises(ConfigError, match=said):
        evaluate.run(["sums.yaml", *words])
    assert calls == []


def test_the_checkpoint_may_be_named_as_a_key(calls: list[Call]) -> None:
    evaluate.run(["sums.yaml", "resume_from_checkpoint=out/step_000050"])
    assert calls[0][1] == ["resume_from_checkpoint=out/step_000050", "mode=bench"]
