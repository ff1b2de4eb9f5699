"""`roll eval`: the call that it makes of its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll import evaluate
from roll.errors import ConfigError


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []

    def main(pipeline: str, argv: list[str]) -> int:
        found.append((pipeline, argv))
        return 2 if "max_steps=0" in argv else 0

    monkeypatch.setattr(evaluate, "main", main)
    return found


def test_a_yaml_runs_in_mode_bench_with_the_checkpoint_that_is_named(calls: list[tuple[str, list[str]]]) -> None:
    words = ["runs/sums.yaml", "--checkpoint", "out/step_000050", "val_batch_size=4"]
    assert evaluate.run(words) == []
    folder = str((Path.cwd() / "runs").absolute())
    place = ["--config_path", folder, "--config_name", "sums.yaml"]
    given = ["val_batch_size=4", "mode=bench", "resume_from_checkpoint=out/step_000050"]
    assert calls == [("rlvr", [*place, *given])]


def test_without_a_checkpoint_the_model_of_the_yaml_is_measured(calls: list[tuple[str, list[str]]]) -> None:
    evaluate.run(["sums.yaml", "--pipeline", "agentic", "--dry_run"])
    ((pipeline, argv),) = calls
    assert pipeline == "agentic" and argv[4:] == ["--dry_run", "mode=bench"]


def test_the_exit_code_is_that_of_the_run(calls: list[tuple[str, list[str]]]) -> None:
    with pytest.raises(SystemExit) as ended:
        evaluate.run(["sums.yaml", "max_steps=0"])
    assert ended.value.code == 2


def test_an_option_that_is_none_is_told(calls: list[tuple[str, list[str]]]) -> None:
    with pytest.raises(ConfigError, match="--checkpiont=x: no option here"):
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
def test_words_without_effect_are_refused(words: list[str], said: str, calls: list[tuple[str, list[str]]]) -> None:
    with pytest.raises(ConfigError, match=said):
        evaluate.run(["sums.yaml", *words])
    assert calls == []


def test_the_checkpoint_may_be_named_as_a_key(calls: list[tuple[str, list[str]]]) -> None:
    evaluate.run(["sums.yaml", "resume_from_checkpoint=out/step_000050"])
    assert calls[0][1][4:] == ["resume_from_checkpoint=out/step_000050", "mode=bench"]
