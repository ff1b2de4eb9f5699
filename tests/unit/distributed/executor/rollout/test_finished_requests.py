"""What an engine hands over: answers with their tokens, or what is known of those that are stored."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from roll.distributed.executor.rollout.finished_requests import FinishedRequests, store
from roll.types.rollout import FinishReason, Generation, GenerationRequest, RowFacts, SamplingParams, StoredRow
from roll.types.texts import RowTexts


def answer(*token_ids: int, reason: str = "stop", version: int = 3) -> Generation:
    tokens = np.array(token_ids, np.int32)
    return Generation(tokens, (-tokens / 10).astype(np.float32), np.full(len(tokens), version, np.int32), reason)  # type: ignore[arg-type]


def request(name: str, *prompt_ids: int, **sampling: object) -> GenerationRequest:
    settings = SamplingParams(max_new_tokens=9, **sampling)  # type: ignore[arg-type]
    return GenerationRequest(name, np.array(prompt_ids, np.int32), settings)


def numbered(result: Mapping[int, Generation] | str, numbers: list[int]) -> list[Generation]:
    assert not isinstance(result, str) and list(result) == numbers
    return list(result.values())


def test_answers_and_errors_come_back_as_they_were_packed():
    results = [
        (request("a", 5), {0: answer(1, 2), 1: answer(reason="abort")}),
        (request("b", 5), "StrategyError: too long"),
        (request("c", 5), {4: replace(answer(7, 8, 9, reason="length"), routes=np.ones((3, 2, 1), np.int16))}),
    ]
    unpacked = FinishedRequests.pack(results).unpack()
    assert [name for name, _ in unpacked] == ["a", "b", "c"]
    assert unpacked[1][1] == "StrategyError: too long"
    first, empty = numbered(unpacked[0][1], [0, 1])
    (last,) = numbered(unpacked[2][1], [4])
    assert first.is_here and empty.is_here and last.is_here
    assert first.routes is None and last.routes is not None and last.routes.shape == (3, 2, 1)
    assert (first.token_ids.tolist(), first.finish_reason) == ([1, 2], "stop")
    assert (empty.token_ids.tolist(), empty.finish_reason) == ([], "abort")
    assert (last.token_ids.tolist(), last.finish_reason) == ([7, 8, 9], "length")
    np.testing.assert_allclose(last.log_probs, [-0.7, -0.8, -0.9], rtol=1e-6)
    assert last.policy_versions.tolist() == [3, 3, 3]


def stored(row: int, facts: RowFacts, reason: FinishReason = "stop") -> Generation:
    return Generation(content=StoredRow("rows", "texts", row, facts), finish_reason=reason)


def decode(ids, brackets=""):
    return [brackets + " ".join(map(str, row.tolist())) for row in ids]


def test_of_stored_answers_come_facts_their_rows_and_their_texts():
    results = [
        (request("a", 5, 6), {0: answer(1, 2), 3: answer(reason="abort")}),
        (request("b", 5), "StrategyError: too long"),
        (request("c", 4, stop_strings=("8",), include_stop_string=False), {1: answer(7, 8, version=2)}),
    ]
    finished, rows, texts = store(results, (decode, lambda ids: decode(ids, "<s>")))
    assert len(finished.token_ids) == len(finished.log_probs) == len(finished.policy_versions) == 0
    unpacked = dict(finished.unpack(("rows", "texts")))
    assert unpacked["b"] == "StrategyError: too long"
    assert unpacked["a"] == {
        0: stored(0, RowFacts(4, 2, 1, 3, 3.0)),
        3: stored(1, RowFacts(2, 0, 0, -1), reason="abort"),
    }
    assert unpacked["c"] == {1: stored(2, RowFacts(3, 2, 1, 2, 2.0))}
    assert rows.lengths.tolist() == [4, 2, 3] and rows.input_ids.tolist() == [5, 6, 1, 2, 5, 6, 4, 7, 8]
    assert rows.response_mask.tolist() == [False, False, True, True, False, False, False, True, True]
    assert rows.policy_versions.tolist() == [-1, -1, 3, 3, -1, -1, -1, 2, 2]
    np.testing.assert_allclose(rows.rollout_log_probs, [0, 0, -0.1, -0.2, 0, 0, 0, -0.7, -0.8], rtol=1e-6)
    assert [texts[row] for row in range(3)] == [RowTexts("1 2", "<s>1 2"), RowTexts("", "<s>"), RowTexts("7 ", "<s>7 ")]
