"""Recorded tokens: whose log-probs stand beside which token."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from roll.distributed.executor.jobs import ScorePiece, ScoreSet
from roll.rl.records import token_records
from roll.rl.records.recorder import rollout_records
from roll.rl.records.token_records import TokenLogProbs, TokenRecords
from roll.types.media import PictureForm, PictureSource
from roll.types.rollout import Task, TrajectoryGroup
from roll.types.texts import RowTexts
from roll.utils.timing import Timer
from tests.unit.run.records.test_logging_board import row

GROUPS = [
    TrajectoryGroup(
        Task(str(number), "math", np.array([0, 1], np.int32)),
        number,
        (row([0, 1, 2, 3], 2, 1.0), row([0, 1, 4], 2, 0.0, index=1)),
    )
    for number in range(3)
]


class Letters:
    def batch_decode(self, ids: list[list[int]]) -> list[str]:
        return ["".join(chr(ord("a") + token) for token in row) for row in ids]


def last(groups: Any) -> Any:
    return groups[-1:]


@pytest.fixture
def records() -> TokenRecords:
    return TokenRecords(2, Letters)  # type: ignore[arg-type]


def test_tokens_of_the_shown_rows_stand_beside_what_engine_and_trainer_say(
    records: TokenRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores of a step are of all its rows, by number; those of the third group are rows 4 and 5."""
    monkeypatch.setattr(token_records, "rows_of_scores", lambda found: given)
    given = {4: np.array([9, 9, -1, -2.5]), 5: np.array([9, 9, -np.inf])}
    pieces = (ScorePiece(np.arange(6), np.array([4, 3] * 3), "stored"),)
    records.take(4, GROUPS, last)
    records.compare(SimpleNamespace(), 1, {"old_log_probs": ScoreSet(pieces)}, 1.0, Timer())  # type: ignore[arg-type]
    assert records.of_rows() == {
        (2, 0, 0): TokenLogProbs(("c", "d"), (-0.5, -0.5), (-1.0, -2.5)),
        (2, 1, 0): TokenLogProbs(("e",), (-0.5,), (None,)),
    }
    shown = rollout_records(GROUPS[2], [RowTexts("cd"), RowTexts("e")], records.of_rows())
    assert [record.tokens and record.tokens.texts for record in shown] == [("c", "d"), ("e",)]
    (other, _) = rollout_records(GROUPS[1], [RowTexts("cd"), RowTexts("e")], records.of_rows())
    assert other.tokens is None


def test_recorded_places_of_pictures_show_no_credentials_and_no_contents() -> None:
    places: tuple[tuple[PictureForm, str], ...] = (
        ("address", "https://user:secret@host/a.png"),
        ("inline", "iVBORw0KGgo"),
        ("file", "/data/a.png"),
    )
    pictures = tuple(PictureSource(form, place, "rows.jsonl:1") for form, place in places)
    group = replace(GROUPS[0], task=replace(GROUPS[0].task, pictures=pictures))
    for record in rollout_records(group, [RowTexts("cd"), RowTexts("e")]):
        assert [picture.place for picture in record.pictures] == ["https://***@host/a.png", "", "/data/a.png"]
    assert group.task.pictures[0].place == "https://user:secret@host/a.png"


def test_without_scores_of_the_step_the_trainer_is_asked_for_these_rows_alone(
    records: TokenRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Trainer:
        weights = "all of it"
        shares_prefixes = False

        def log_probs(self, samples: Any, temperature: float) -> dict[int, np.ndarray]:
            asked.append(len(samples.meta))
            return {0: np.array([9, 9, -0.25, -0.75]), 1: np.array([9, 9, -1.5])}

    monkeypatch.setattr(token_records, "rows_of_scores", lambda found: found)
    monkeypatch.setattr("roll.distributed.executor.step_rows.share", lambda batch, ranks: ())
    clusters = SimpleNamespace(actor_train=Trainer(), placement=SimpleNamespace(hold=lambda *needs: nullcontext()))
    timer = Timer()
    records.take(2, GROUPS, last)
    records.compare(clusters, 1, {}, 1.0, timer)  # type: ignore[arg-type]
    assert asked == [2]
    assert [told.trainer for told in records.of_rows().values()] == [(-0.25, -0.75), (-1.5,)]
    assert "time/token_records_s" in timer.metrics()


@pytest.mark.parametrize("every, step", [(2, 3), (0, 4), (-1, 4)])
def test_other_steps_are_left_alone(every: int, step: int) -> None:
    records, timer = TokenRecords(every, Letters), Timer()  # type: ignore[arg-type]
    records.take(step, GROUPS, last)
    records.compare(SimpleNamespace(), 1, {}, 1.0, timer)  # type: ignore[arg-type]
    assert records.of_rows() == {} and "time/token_records_s" not in timer.metrics()


def test_what_a_step_had_is_not_told_of_the_next(records: TokenRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_records, "rows_of_scores", lambda found: {4: np.zeros(4), 5: np.zeros(3)})
    records.take(2, GROUPS, last)
    records.compare(SimpleNamespace(), 1, {"old_log_probs": ScoreSet(())}, 1.0, Timer())  # type: ignore[arg-type]
    assert len(records.of_rows()) == 2
    records.take(3, GROUPS, last)
    assert records.of_rows() == {}
