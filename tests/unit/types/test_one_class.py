"""One class for an answer and one for an attempt, whether the tokens are here or in the object store."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from roll.distributed.executor.step_rows import fetched, texts_of
from roll.errors import RollError, TokensElsewhere
from roll.types.collate import collate_groups, placed, row_meta, stored
from roll.types.rollout import Generation, RowFacts, StoredRow, Task, Trajectory, TrajectoryGroup, stored_among
from roll.types.texts import Turn

PROMPT = np.array([5, 6], np.int32)
FACTS = RowFacts(num_tokens=5, num_sampled=3, num_turns=1, oldest_version=2, mean_version=2.5)
PLACE = StoredRow("tokens", "texts", 7, FACTS)


def answer(*versions: int) -> Generation:
    count = len(versions)
    return Generation(
        np.arange(count, dtype=np.int32), -np.ones(count, np.float32), np.array(versions, np.int32), "length"
    )


def attempt(generation: Generation, **told: Any) -> Trajectory:
    return Trajectory.from_generation(PROMPT, generation, 0.5, index=1, response_text="said", **told)


IN_STORE = Generation(content=PLACE, finish_reason="stop")


def test_an_attempt_is_made_of_either_kind_of_answer_by_one_call() -> None:
    here, there = attempt(answer(2, 3, 3), extra={"a": 1}), attempt(IN_STORE, extra={"a": 1})
    assert (here.is_here, there.is_here) == (True, False)
    assert there.content is PLACE and there.facts is FACTS
    assert here.facts == RowFacts(5, 3, 1, 2, 8 / 3)
    assert (here.response_text, here.input_ids.tolist()) == ("said", [5, 6, 0, 1, 2])
    for row, reason in ((here, "length"), (there, "stop")):
        assert (row.reward, row.index, row.finish_reason, row.extra) == (0.5, 1, reason, {"a": 1})
    failed = attempt(IN_STORE, failure="broke")
    assert (failed.failure, failed.finish_reason, np.isnan(failed.reward)) == ("broke", "failed", True)


def test_stored_attempts_count_change_and_travel_as_others() -> None:
    assert (answer(4, 2, 3).num_tokens, answer(4, 2, 3).oldest_version) == (3, 2)
    assert (IN_STORE.num_tokens, IN_STORE.oldest_version) == (3, 2)
    assert stored_among([answer(1), IN_STORE, answer(2)]) == {1: PLACE}
    there = attempt(IN_STORE)
    rewarded = there.rewarded(2.0, {"m": 1.0}, {"why": "so"})
    assert (rewarded.reward, rewarded.metrics, rewarded.extra) == (2.0, {"m": 1.0}, {"why": "so"})
    assert rewarded.content is PLACE and there.failed("broke").content is PLACE
    assert replace(IN_STORE, finish_reason="moved") == Generation(content=PLACE, finish_reason="moved")


@pytest.mark.parametrize(
    ("value", "name"),
    [(IN_STORE, "token_ids"), (attempt(IN_STORE), "input_ids"), (attempt(IN_STORE), "turns")],
)
def test_reading_what_is_in_the_store_says_how_to_get_it(value: object, name: str) -> None:
    with pytest.raises(TokensElsewhere, match=r"object store.*fetched\(\[trajectories\]\).*texts_of") as raised:
        getattr(value, name)
    assert isinstance(raised.value, RollError)
    assert not hasattr(value, name) and getattr(value, name, "other") == "other"
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize("read", [lambda row: fetched([[row]]), lambda row: texts_of([row])])
def test_rows_of_a_simulated_run_have_nothing_to_fetch(read: Callable[[Trajectory], object]) -> None:
    content = StoredRow(None, None, 0, FACTS)
    with pytest.raises(TokensElsewhere, match="simulated run"):
        read(Trajectory(reward=0.0, finish_reason="stop", content=content))


def test_columns_and_texts_are_replaced_by_their_names_and_facts_follow() -> None:
    turn = Turn("seen", "said", None, 0.5)
    row = replace(attempt(answer(2, 2, 2)), response_text="other", turns=(turn,), turn=3)
    assert (row.response_text, row.turns, row.turn, row.facts.num_sampled) == ("other", (turn,), 3, 3)
    fewer = replace(row, response_mask=np.array([False, False, True, False, True]))
    assert fewer.facts == RowFacts(5, 2, 2, 2, 2.0) and fewer.response_text == "other"
    versions = np.array([4, 4, 5], np.int32)
    other = replace(answer(2, 2, 2), policy_versions=versions)
    assert other.policy_versions is versions and other.token_ids.tolist() == [0, 1, 2]
    assert replace(replace(other, routes=np.zeros((3, 1, 1), np.int16)), routes=None).routes is None


def test_a_constructor_that_lacks_a_column_or_has_another_is_refused() -> None:
    ids, log_probs = PROMPT, np.zeros(2, np.float32)
    with pytest.raises(TypeError, match="policy_versions"):
        Generation(ids, log_probs, finish_reason="stop")
    with pytest.raises(TypeError, match="finish_reason"):
        Generation(ids, log_probs, ids)
    with pytest.raises(TypeError, match="response_mask"):
        Trajectory(input_ids=ids, log_probs=log_probs, policy_versions=ids, reward=0.0, finish_reason="stop")
    with pytest.raises(TypeError, match="text"):
        replace(attempt(answer(1)), text="said")


def test_rows_that_are_stored_together_keep_all_but_their_content() -> None:
    rows = [attempt(answer(1, 1), metrics={"m": 2.0}), attempt(answer(1, 2, 3))]
    known = pickle.loads(pickle.dumps(stored(rows)))
    there = placed(known, ("t", "x"))
    assert [row.content for row in there] == [StoredRow("t", "x", i, row.facts) for i, row in enumerate(rows)]
    assert [row.metrics for row in there] == [{"m": 2.0}, {}]
    assert placed(rows, ("t", "x")) == rows  # what came with its tokens stays
    task = Task("t", "d", PROMPT)
    here, apart = (row_meta([TrajectoryGroup(task, 0, tuple(some))]) for some in (rows, there))
    assert here.lengths.tolist() == apart.lengths.tolist() == [4, 5]
    with pytest.raises(TokensElsewhere):
        collate_groups([TrajectoryGroup(task, 0, tuple(there))])
