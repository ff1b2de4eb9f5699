"""Which samples a report shows, and the colours of their tokens."""

from pathlib import Path

import pytest

from roll.report.figures import ABSENT, differing, flat
from roll.report.run_files import read_run
from roll.report.samples import SampleReader, coloured_tokens, spread
from roll.rl.records.recorder import RolloutRecorder
from roll.rl.records.token_records import TokenLogProbs
from roll.run.records.replay import RecordedTokens
from tests.unit.report.test_report import record, write_run


@pytest.mark.parametrize(
    "engine, trainer, shade",
    [
        (-0.5, -0.5, ""), (-0.5, -0.509, ""), (-0.5, -0.52, "e1"), (-0.5, -1.0, "e4"), (-0.5, -3.0, "e5"),
        (-1.0, -0.96, "t2"), (-2.0, -0.5, "t5"), (-0.5, None, "e5"), (None, -0.5, "e5"),
    ],
)  # fmt: skip
def test_a_token_has_the_shade_of_its_gap(engine: float | None, trainer: float | None, shade: str) -> None:
    (token,) = coloured_tokens(RecordedTokens(texts=["a"], engine=[engine], trainer=[trainer]))
    assert token.shade == shade


def test_steps_are_spread_over_the_run() -> None:
    assert spread([1, 2, 3, 4, 5, 6, 7, 8, 9], 3) == [1, 5, 9]
    assert spread([1, 2], 3) == [1, 2]
    assert spread([1, 2, 3], 1) == [3]
    assert spread([1, 2, 3], 0) == [] == spread([], 4)


def test_steps_with_tokens_are_shown_rather_than_others(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=4)
    tokens = TokenLogProbs(("a", "b"), (-0.5, -1.0), (-0.75, -1.0))
    RolloutRecorder(run / "rollouts").record(2, [record(tokens=tokens)])
    RolloutRecorder(run / "rollouts").record(4, [record(response_text="validated")], kind="val")
    step, validated = SampleReader().of_run(read_run(run), num_steps=3)
    assert (step.title, validated.title) == ("step 2", "validation after step 4")
    ((sample,),) = [group.samples for group in step.groups]
    assert (sample.mean_gap, sample.largest_gap) == (0.125, 0.25)
    assert [(token.text, token.shade, token.title) for token in sample.tokens] == [
        ("a", "e3", "engine -0.5, trainer -0.75"),
        ("b", "", "engine -1, trainer -1"),
    ]


def test_beyond_what_a_page_can_hold_tokens_are_left_out_and_texts_stay(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1)
    tokens = TokenLogProbs(("a", "b"), (-0.5, -1.0), (-0.75, -1.0))
    RolloutRecorder(run / "rollouts").record(1, [record(tokens=tokens), record(tokens=tokens, reward=0.5)])
    (step,) = SampleReader(room=3).of_run(read_run(run), num_steps=1)
    first, second = step.groups[0].samples
    assert (len(first.tokens), len(second.tokens), second.mean_gap) == (2, 0, 0.125)
    assert second.record.response_text == "four"


def test_equal_answers_of_a_group_are_shown_once_with_their_number(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1)
    slow, others = record(extra={"score_s": 2.0}), [record(extra={"score_s": 1.0})] * 2
    RolloutRecorder(run / "rollouts").record(1, [slow, record(reward=0.0), *others, record(extra={"parts": 2})])
    (step,) = SampleReader().of_run(read_run(run), num_steps=1)
    assert [(sample.record.reward, sample.count) for sample in step.groups[0].samples] == [(1.0, 3), (0.0, 1), (1.0, 1)]


def test_configurations_are_compared_by_the_paths_of_their_values() -> None:
    first, second = {"a": {"b": 1, "c": [1]}, "d": None}, {"a": {"b": 2, "c": [1]}, "e": {}}
    assert flat(first) == {"a.b": "1", "a.c": "[1]", "d": "null"}
    assert differing([first, second]) == [("a.b", ["1", "2"]), ("d", ["null", ABSENT]), ("e", [ABSENT, "{}"])]


def test_what_runs_were_given_comes_before_what_follows_and_no_default_of_one_run_alone() -> None:
    first = {"seed": 1, "train": {"learning_rate": 0.1, "rows": 4}, "validation": {"rows": 8, "top_p": 1.0}}
    second = {"seed": 1, "train": {"learning_rate": 0.2, "rows": 8}, "steps": 5}
    settings = [{"train": {"learning_rate": 0.1}, "validation": {"rows": 8}}, {"steps": 5}]
    assert [key for key, _ in differing([first, second], settings)] == [
        "train.learning_rate", "validation.rows", "steps", "train.rows",
    ]  # fmt: skip
    assert "validation.top_p" in [key for key, _ in differing([first, second])]
