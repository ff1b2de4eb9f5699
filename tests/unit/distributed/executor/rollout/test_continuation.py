"""Answers that come in pieces: what is asked next, and what the whole is."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from roll.distributed.executor.rollout.answers import Continuation, continued_seed, joined, names_of, rest_of
from roll.distributed.strategy.stop_strings import StopStrings
from roll.types.rollout import FinishReason, Generation, GenerationRequest, SamplingParams
from tests.helpers.cases import cases

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def request(num_samples: int = 1, prefix: Generation | None = None, **sampling: Any) -> GenerationRequest:
    options: dict[str, Any] = {"max_new_tokens": 10, "seed": 7} | sampling
    return GenerationRequest(
        "r",
        np.array([1, 2], np.int32),
        SamplingParams(**options),
        num_samples,
        prefix=prefix,
    )


def generation(token_ids: list[int], reason: FinishReason, version: int = 0) -> Generation:
    ids = np.array(token_ids, np.int32)
    return Generation(ids, -ids.astype(np.float32), np.full(len(ids), version, np.int32), reason)


def never() -> StopStrings:
    raise AssertionError("there are no stop strings")


def asked(whole: Continuation) -> list[tuple[str, list[int], int]]:
    """Of each part: id, numbers of the answers, tokens that are there."""
    return [
        (part.request_id, list(part.samples), part.prefix.num_tokens if part.prefix else 0) for part in whole.missing()
    ]


def test_what_is_missing_is_asked_and_nothing_else() -> None:
    whole = Continuation(request(6))
    assert whole.missing() == [whole.request]
    whole.receive(1, generation([5], "stop"))
    whole.receive(3, generation([5, 6], "moved"))
    whole.receive(4, generation([], "moved"))
    assert asked(whole) == [("r~0@0", [0], 0), ("r~2@0", [2], 0), ("r~3@2", [3], 2), ("r~4@0", [4, 5], 0)]
    assert all("r" in names_of(part.request_id) for part in whole.missing())
    assert whole.answers() is None
    whole.receive(3, generation([5, 6, 7], "moved"))  # once more, further on
    assert ("r~3@3", [3], 3) in asked(whole)


def test_each_answer_stands_and_is_told_once_by_its_number() -> None:
    told: list[int] = []
    whole = Continuation(request(2), lambda number, answer: told.append(number))
    whole.receive(1, generation([5], "moved"))
    assert told == []
    first, other = generation([5, 6], "stop"), generation([9], "stop")
    whole.receive(1, first)
    whole.receive(1, other)
    whole.receive(0, other)
    assert told == [1, 0]
    assert whole.answers() == [other, first]


def test_whole_and_surplus_answers_are_not_begun_again() -> None:
    whole = Continuation(request(max_new_tokens=2))
    whole.receive(0, generation([5, 6], "moved"))
    answers = whole.answers()
    assert answers is not None and answers[0].finish_reason == "length"
    whole = Continuation(replace(request(2), enough=1))
    whole.receive(0, generation([5], "stop"))
    whole.receive(1, generation([7], "abort"))
    answers = whole.answers()
    assert answers is not None and [answer.finish_reason for answer in answers] == ["stop", "abort"]


@pytest.mark.parametrize(("moved", "enough"), [([1, 2], [1]), ([0, 2], [None, None])])
def test_enough_counts_on_where_one_request_is_left(moved: list[int], enough: list[int | None]) -> None:
    whole = Continuation(GenerationRequest("r", np.array([1], np.int32), SamplingParams(5), 3, enough=2))
    for number in range(3):
        whole.receive(number, generation([], "moved") if number in moved else generation([4], "stop"))
    assert [part.enough for part in whole.missing()] == enough


def test_the_rest_has_as_many_tokens_less_after_what_is_there_and_random_numbers_of_its_own() -> None:
    begun = request(prefix=generation([5, 6, 7], "moved"), min_new_tokens=4)
    rest = rest_of(begun)
    assert rest.prompt_ids.tolist() == [1, 2, 5, 6, 7]
    assert (rest.sampling.max_new_tokens, rest.sampling.min_new_tokens) == (7, 1)
    assert rest.sampling.seed == continued_seed(7, 3)
    assert len({continued_seed(seed, position) for seed in (7, 8) for position in (0, 1, 2)}) == 6
    assert continued_seed(7, 0) == 7 and continued_seed(None, 3) is None
    whole = request()
    assert rest_of(whole) is whole


def test_ids_log_probs_and_versions_are_joined() -> None:
    begun = request(prefix=generation([5, 6], "moved", version=3))
    whole = joined(begun, generation([7], "stop", version=4), never)
    assert whole.token_ids.tolist() == [5, 6, 7]
    assert whole.log_probs.tolist() == [-5, -6, -7]
    assert whole.policy_versions.tolist() == [3, 3, 4]
    assert whole.finish_reason == "stop"
    routes = np.arange(8, dtype=np.int16).reshape(-1, 1, 1)  # of the prompt, what was there, and the rest
    found = joined(begun, replace(generation([7], "stop"), routes=routes), never).routes
    assert found is not None and len(found) == min(8, len(begun.prompt_ids) + 3)
    early = request(prefix=replace(generation([5, 6], "moved"), routes=routes[:2]))
    assert joined(early, generation([], "abort"), never).routes is not None
    alone = generation([7], "length")
    assert joined(request(), alone, never) is alone


@cases("before, after, min_new_tokens, expected")
def test_a_stop_string_across_the_seam_ends_the_answer(
    tiny_tokenizer: "PreTrainedTokenizerFast", before: str, after: str, min_new_tokens: int, expected: str
) -> None:
    def ids(text: str) -> list[int]:
        return [token for piece in text for token in tiny_tokenizer.encode(piece)]

    begun = request(
        prefix=generation(ids(before), "moved"),
        stop_strings=("</answer>",),
        max_new_tokens=200,
        min_new_tokens=min_new_tokens,
    )
    whole = joined(begun, generation(ids(after), "length"), lambda: StopStrings.of(tiny_tokenizer))
    assert tiny_tokenizer.decode(whole.token_ids) == expected
    assert whole.finish_reason == ("length" if len(expected) == len(before + after) else "stop")
    assert len(whole.log_probs) == len(whole.policy_versions) == whole.num_tokens
