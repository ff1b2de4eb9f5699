"""One prompt, several answers: seeds, what the reward sees, what becomes of failures."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from roll.distributed.executor.step_rows import texts_of
from roll.errors import PictureError
from roll.pipeline.rlvr.prompt_rollouter import PromptRollouter, request_seed
from roll.rewards.base import RewardInput, RewardOutcome
from roll.rl.records.recorder import rollout_records
from roll.types.media import Picture, Prompt, Shown
from roll.types.rollout import (
    Answered,
    FinishReason,
    Generation,
    GenerationRequest,
    Place,
    SamplingParams,
    Task,
    TrajectoryGroup,
)

TASK = Task("t", "math", np.array([1, 2, 3], np.int32), "one two three", {"ground_truth": "7", "level": 2})


class Engine:
    """Answers i with token ids [10 + i] * (i + 1)."""

    def __init__(self, *finish: FinishReason):
        self.finish = finish
        self.requests: list[GenerationRequest] = []

    async def __call__(self, request: GenerationRequest, answered: Answered | None = None) -> Sequence[Generation]:
        self.requests.append(request)
        return [
            Generation(
                np.full(i + 1, 10 + i, np.int32), np.full(i + 1, -0.5, np.float32), np.full(i + 1, 4, np.int32), reason
            )
            for i, reason in enumerate(self.finish)
        ]


class Scores:
    """Gives the outcomes it holds, one after the other."""

    def __init__(self, *outcomes: RewardOutcome):
        self.outcomes = outcomes
        self.calls: list[tuple[str, list[RewardInput]]] = []

    def scores_alone(self, domain: str) -> bool:
        return False

    async def score(self, domain: str, inputs: list[RewardInput], places: Sequence[Place] = ()) -> list[RewardOutcome]:
        self.calls.append((domain, inputs))
        return list(self.outcomes)


class SlowScores:
    """Scores an answer when it is told to, each alone; the reward is its number of tokens."""

    def __init__(self):
        self.begun: dict[str, asyncio.Future[RewardOutcome]] = {}

    def scores_alone(self, domain: str) -> bool:
        return True

    async def score(self, domain: str, inputs: list[RewardInput], places: Sequence[Place] = ()) -> list[RewardOutcome]:
        for sample in inputs:
            self.begun[sample.response_text] = asyncio.get_running_loop().create_future()
        return [await self.begun[sample.response_text] for sample in inputs]


class Telling(Engine):
    """Tells of its answers in an order of its own, and ends when it may."""

    def __init__(self, *finish: FinishReason, order: Sequence[int]):
        super().__init__(*finish)
        self.order, self.may_end = order, asyncio.Event()

    async def __call__(self, request: GenerationRequest, answered: Answered | None = None) -> Sequence[Generation]:
        answers = await super().__call__(request)
        if answered is not None:
            for index in self.order:
                answered(index, answers[index])
        await self.may_end.wait()
        return answers


async def turns(until: Callable[[], bool]) -> None:
    while not until():
        await asyncio.sleep(0)


def decode(ids: list[np.ndarray]) -> list[str]:
    return [" ".join(map(str, row.tolist())) for row in ids]


def rollouter(scores: Scores | SlowScores, group_size: int) -> PromptRollouter:
    return PromptRollouter(scores, decode, SamplingParams(max_new_tokens=8), group_size, seed=42)  # type: ignore[arg-type]


def run(rollouter: PromptRollouter, engine: Engine, group_id: int = 5, step: int = 2):
    return asyncio.run(rollouter.run_group(TASK, group_id, step, engine))


def test_rewards_see_the_thinking_that_the_prompt_opens_and_records_the_answer_alone() -> None:
    scores = Scores(RewardOutcome(1.0))
    task = replace(TASK, prompt_text="one two three<think>\n")
    group = asyncio.run(rollouter(scores, 1).run_group(task, 0, 0, Engine("stop")))
    ((_, inputs),) = scores.calls
    assert inputs[0].response_text == "<think>\n10" and inputs[0].answer == "" and inputs[0].raw_text == "10"
    (record,) = rollout_records(group, texts_of(group.trajectories))
    assert record.response_text == "10" and record.prompt_text == task.prompt_text


def test_answers_become_trajectories_with_their_rewards() -> None:
    scores, engine = (
        Scores(RewardOutcome(1.0, metrics={"boxed": 1.0}, extra={"answer": "7"}, seconds=0.5), RewardOutcome(-2.0)),
        Engine("stop", "length"),
    )
    group = run(rollouter(scores, 2), engine)
    first, second = group.trajectories
    assert first.is_here and second.is_here
    assert (group.group_id, group.task, group.rewards.tolist()) == (5, TASK, [1.0, -2.0])
    assert second.input_ids.tolist() == [1, 2, 3, 11, 11] and second.response_mask.tolist() == [False] * 3 + [True] * 2
    assert (first.index, second.index, second.finish_reason, second.response_text) == (0, 1, "length", "11 11")
    assert first.metrics == {"boxed": 1.0, "reward_time_s": 0.5}
    assert [record.extra for record in rollout_records(group, texts_of(group.trajectories))] == [{"answer": "7"}, {}]


def test_answers_that_are_scored_after_the_rollout_wait_and_those_cut_short_fail_at_once() -> None:
    scores, engine = Scores(), Engine("stop", "abort", "length")
    group = run(replace(rollouter(scores, 3), after_rollout=frozenset({"math"})), engine)
    assert scores.calls == []
    assert [t.failure for t in group.trajectories] == [None, "generation was aborted", None]
    assert [t.finish_reason for t in group.trajectories] == ["stop", "failed", "length"]
    assert np.isnan(group.rewards).all() and group.trajectories[0].metrics == {}


def test_the_reward_sees_the_answer_and_the_row() -> None:
    scores, engine = Scores(RewardOutcome(1.0), RewardOutcome(1.0)), Engine("stop", "length")
    run(replace(rollouter(scores, 2), decode_raw=lambda ids: ["raw"] * len(ids)), engine)
    ((domain, (_, sample)),) = scores.calls
    assert domain == "math"
    assert sample == RewardInput("one two three", "11 11", "7", "math", "length", 2, "raw", TASK.payload)


def test_a_failure_is_marked_and_not_scored() -> None:
    group = run(rollouter(Scores(RewardOutcome.failed("KeyError: x"), RewardOutcome(0.0)), 2), Engine("stop", "stop"))
    failed, fine = group.trajectories
    assert failed.failure == "KeyError: x" and np.isnan(failed.reward) and failed.finish_reason == "failed"
    assert fine.failure is None and fine.reward == 0.0
    scores = Scores(RewardOutcome(1.0), RewardOutcome(0.5))
    group = run(rollouter(scores, 3), Engine("stop", "abort", "length"))
    assert [t.failure for t in group.trajectories] == [None, "generation was aborted", None]
    assert [t.reward for t in group.trajectories if not t.failure] == [1.0, 0.5]
    assert [sample.response_text for sample in scores.calls[0][1]] == ["10", "12 12 12"]
    run(rollouter(none := Scores(), 1), Engine("abort"))
    assert none.calls == []


def test_one_request_per_group_with_a_seed_of_its_own() -> None:
    engine, outcome = Engine("stop"), RewardOutcome(0.0)
    subject = rollouter(Scores(outcome), 1)
    for group_id in (5, 6, 5):
        run(subject, engine, group_id)
    run(replace(subject, purpose="validation"), engine)
    run(replace(subject, seed=43), engine)
    seeds = [request.sampling.seed for request in engine.requests]
    assert seeds[2] == seeds[0] and len(set(seeds)) == 4
    assert engine.requests[0].num_samples == 1 and engine.requests[0].sampling.max_new_tokens == 8
    assert [r.request_id for r in engine.requests[:2]] == ["train-5", "train-6"]


def test_a_group_samples_under_the_seed_of_its_number() -> None:
    """Resumed with another batch size, group 40 belongs to another step."""
    engine, subject = Engine("stop"), rollouter(Scores(RewardOutcome(0.0)), 1)
    for step in (5, 10):
        run(subject, engine, 40, step)
    first, second = (request.sampling.seed for request in engine.requests)
    assert first == second == request_seed(42, "train", 40)
    assert request_seed(42, "train", 0) == 180839773014818
    assert request_seed(42, "validation", 1234567) == 119845790607196
    assert all(0 <= request_seed(1, "train", group) < 2**48 for group in range(400))
    with pytest.raises(ValueError, match="1 responses, but 2 were requested"):
        run(rollouter(Scores(), 2), Engine("stop"))
    with pytest.raises(ValueError, match="0 outcomes for 1 responses"):
        run(rollouter(Scores(), 1), Engine("stop"))


def test_an_answer_is_scored_while_others_are_sampled_and_the_group_is_the_same() -> None:
    async def play() -> TrajectoryGroup:
        scores, engine = SlowScores(), Telling("stop", "abort", "length", "stop", order=[2, 1, 0])
        group = asyncio.create_task(rollouter(scores, 4).run_group(TASK, 5, 2, engine))
        await turns(lambda: len(scores.begun) == 2)
        assert list(scores.begun) == ["12 12 12", "10"] and not group.done()
        scores.begun["12 12 12"].set_result(RewardOutcome(3.0, metrics={"boxed": 1.0}))
        scores.begun["10"].set_result(RewardOutcome.failed("KeyError: x"))
        engine.may_end.set()
        await turns(lambda: len(scores.begun) == 3)
        scores.begun["13 13 13 13"].set_result(RewardOutcome(4.0))
        return await group

    outcomes = RewardOutcome.failed("KeyError: x"), RewardOutcome(3.0, metrics={"boxed": 1.0}), RewardOutcome(4.0)
    whole = run(rollouter(Scores(*outcomes), 4), Engine("stop", "abort", "length", "stop"))
    assert str(asyncio.run(play())) == str(whole)


def test_a_group_that_is_cancelled_ends_what_scores_its_answers() -> None:
    async def play() -> None:
        scores, engine = SlowScores(), Telling("stop", "stop", order=[1])
        group = asyncio.create_task(rollouter(scores, 2).run_group(TASK, 5, 2, engine))
        await turns(lambda: "11 11" in scores.begun)
        group.cancel()
        with pytest.raises(asyncio.CancelledError):
            await group
        await turns(lambda: scores.begun["11 11"].cancelled())

    asyncio.run(play())


def test_with_redundancy_the_first_whole_answers_are_the_group_and_the_others_are_remembered_by_length() -> None:
    engine = Engine("abort", "stop", "length", "stop", "abort")
    scores = Scores(RewardOutcome(1.0), RewardOutcome(2.0))
    group = run(replace(rollouter(scores, 2), redundancy=3), engine)
    assert (engine.requests[0].num_samples, engine.requests[0].enough) == (5, 2)
    assert [t.index for t in group.trajectories] == [1, 2] and group.rewards.tolist() == [1.0, 2.0]
    assert [len(inputs) for _, inputs in scores.calls] == [2]
    assert group.surplus == ((1, False), (4, True), (5, False))
    assert engine.requests[0].sampling.seed == request_seed(42, "train", 5)


def test_with_a_greedy_answer_to_compare_with_its_reward_stands_beside_the_group() -> None:
    """It is one request more, drawn from nothing, scored as the others are, and none of the rows."""

    class ByLength(Scores):
        async def score(
            self, domain: str, inputs: list[RewardInput], places: Sequence[Place] = ()
        ) -> list[RewardOutcome]:
            return [RewardOutcome(float(sample.num_response_tokens)) for sample in inputs]

    class Greedy(Engine):
        async def __call__(self, request: GenerationRequest, answered: Answered | None = None) -> Sequence[Generation]:
            answers = await super().__call__(request)
            return answers[-1:] if request.sampling.temperature == 0 else answers

    sampling = SamplingParams(max_new_tokens=8, temperature=0.7, top_p=0.9, top_k=5, min_new_tokens=2)
    compared = replace(rollouter(ByLength(), 3), sampling=sampling, is_compared=True)
    group = run(compared, engine := Greedy("stop", "length", "stop"))
    assert group.rewards.tolist() == [1.0, 2.0, 3.0] and group.greedy_reward == 3.0
    sampled, greedy = sorted(engine.requests, key=lambda request: request.request_id)
    assert (sampled.request_id, greedy.request_id) == ("train-5", "train-5-greedy")
    assert (sampled.num_samples, greedy.num_samples, greedy.enough) == (3, 1, None)
    seen = (greedy.sampling.temperature, greedy.sampling.top_p, greedy.sampling.top_k, greedy.sampling.min_new_tokens)
    assert seen == (0.0, 1.0, 0, 2) and greedy.order == sampled.order
    assert run(replace(compared, is_compared=False), engine).greedy_reward is None
    failed = run(compared, Greedy("stop", "stop", "abort"))
    assert failed.greedy_reward is not None and np.isnan(failed.greedy_reward)


def test_where_redundancy_does_not_suffice_answers_that_were_cut_fill_the_group() -> None:
    group = run(replace(rollouter(Scores(RewardOutcome(1.0)), 2), redundancy=1), Engine("abort", "abort", "stop"))
    assert [(t.index, t.failure) for t in group.trajectories] == [(0, "generation was aborted"), (2, None)]
    assert run(rollouter(Scores(RewardOutcome(1.0)), 1), engine := Engine("stop")).surplus == ()
    assert engine.requests[0].enough is None


def test_the_engine_is_shown_the_pictures_of_the_task_and_rows_keep_them() -> None:
    shown = Shown(Picture("red", 28, 56, np.zeros((28, 56, 3), np.uint8), scale=(0.5, 2.0)), 1, 2)
    prompt = Prompt(np.array([1, 9, 9, 3], np.int32), (shown,))

    async def make_prompt(task: Task) -> Prompt:
        assert task is TASK
        return prompt

    engine = Engine("stop", "length")
    scores = Scores(RewardOutcome(1.0), RewardOutcome(0.0))
    sees = replace(rollouter(scores, 2), make_prompt=make_prompt, max_length=7)
    group = run(sees, engine)
    (request,) = engine.requests
    assert request.prompt_ids is prompt.ids and request.media == (shown,) and request.sampling.max_new_tokens == 3
    assert [t.media for t in group.trajectories] == [(shown,)] * 2
    assert [sample.picture_scales for _, inputs in scores.calls for sample in inputs] == [((0.5, 2.0),)] * 2
    assert [t.input_ids[:4].tolist() for t in group.trajectories] == [[1, 9, 9, 3]] * 2


def test_a_task_whose_picture_is_broken_fails_and_nothing_is_sampled() -> None:
    async def make_prompt(task: Task) -> Prompt:
        raise PictureError("rows.jsonl:7, column images[0]: it is empty (0 bytes)")

    engine = Engine("stop", "stop")
    group = run(replace(rollouter(Scores(), 2), make_prompt=make_prompt), engine)
    assert engine.requests == []
    assert [t.failure for t in group.trajectories] == ["rows.jsonl:7, column images[0]: it is empty (0 bytes)"] * 2
    assert not any(t.response_mask.any() for t in group.trajectories) and np.isnan(group.rewards).all()


def test_the_reward_does_not_see_the_stop_string_where_it_is_not_to_be_included() -> None:
    """Its tokens stay in the row."""
    seen = []
    for include in (True, False):
        scores = Scores(RewardOutcome(1.0), RewardOutcome(1.0))
        sampling = SamplingParams(8, stop_strings=("11",), include_stop_string=include)
        group = run(replace(rollouter(scores, 2), sampling=sampling), Engine("length", "stop"))
        seen.append([sample.response_text for sample in scores.calls[0][1]])
        rows = group.trajectories
        assert [t.response_text for t in rows] == seen[-1]
        assert rows[1].input_ids.tolist() == [1, 2, 3, 11, 11]
    assert seen == [["10", "11 11"], ["10", "11 "]]
