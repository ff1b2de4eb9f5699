"""Answers that stay in the object store, on their way from an engine to the ranks that train on them: they are the same
as those that pass the driver, and outlive the engine."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import ray

from roll.distributed.executor.blueprint import BatchLimits, WorkerInfo
from roll.distributed.executor.pools.task_pool import TaskPool
from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.executor.processes.resource_manager import ResourceManager
from roll.distributed.executor.roles import TrainCluster
from roll.distributed.executor.rollout.engines import GenerateCluster
from roll.distributed.executor.rollout.finished_requests import DIRECT_TOKENS
from roll.distributed.executor.step_rows import StepRows, fetched, texts_at, texts_of
from roll.errors import WorkerError
from roll.pipeline.rlvr.reward_model import AnswerReader, AnswerReading, RewardModel
from roll.types.batch import Rows, SampleBatch, SampleSet
from roll.types.rollout import (
    Generation,
    GenerationRequest,
    SamplingParams,
    Task,
    Trajectory,
    TrajectoryGroup,
    stored_among,
)
from tests.integration.executor.parts import worker_setup

LONG = DIRECT_TOKENS // 2


def request(number: int, new_tokens: int) -> GenerationRequest:
    prompt = np.array([3, 10 * number], np.int32)
    return GenerationRequest(f"r{number}", prompt, SamplingParams(new_tokens), num_samples=3)


def answer(engines: Cluster, requests: Sequence[GenerationRequest]) -> list[Sequence[Generation]]:
    """One after the other, so that what is large does not depend on what ends together."""
    rollout = GenerateCluster(engines)

    async def ask() -> list[Sequence[Generation]]:
        return [await rollout.generate(each) for each in requests]

    return asyncio.run(ask())


def group(asked: GenerationRequest, answers: Sequence[Generation]) -> TrajectoryGroup:
    """Rewards 0, 1, and a failure."""
    rows = []
    for index, given in enumerate(answers):
        told: dict[str, Any] = {"index": index, "failure": "broke" if index == 2 else None}
        reward = float("nan") if index == 2 else float(index)
        rows.append(Trajectory.from_generation(asked.prompt_ids, given, reward, response_text="", **told))
    return TrajectoryGroup(Task("t", "math", asked.prompt_ids), int(asked.prompt_ids[1]), tuple(rows))


def shards(samples: SampleSet) -> list[SampleBatch]:
    return [ray.get(cast(Any, shard.handle)) for shard in samples.shards]


@pytest.fixture(scope="module")
def policy(trainer: Cluster) -> TrainCluster:
    made = TrainCluster(trainer, BatchLimits(3), BatchLimits(2))
    made.finish_setup([WorkerInfo(0, 2, True), WorkerInfo(1, 2, False)])
    return made


@pytest.fixture
def engine(start: Callable[..., Cluster], tiny_tied_model_dir: Path) -> Cluster:
    cluster = start("actor_infer", devices=(6,), model=str(tiny_tied_model_dir))
    cluster.call_all("setup")
    return cluster


def test_stored_rows_make_the_same_shards_as_rows_that_pass_the_driver_and_outlive_their_engine(
    engine: Cluster, policy: TrainCluster
) -> None:
    asked = [request(1, LONG), request(2, 5), request(3, LONG + 7)]
    answers = answer(engine, asked)
    assert [one.is_here for given in answers for one in given] == [False] * 3 + [True] * 3 + [False] * 3
    engine.kill()
    with pytest.raises(WorkerError):  # a call that was under way before the kill still ends well
        while True:
            engine.call_all("check_health")
    groups = [group(*pair) for pair in zip(asked, answers, strict=True)]
    rows_here = fetched([given.trajectories for given in groups])
    here = [replace(given, trajectories=tuple(rows)) for given, rows in zip(groups, rows_here, strict=True)]
    first = rows_here[0][0]
    assert first.input_ids.tolist() == [3, *range(10, 11 + LONG)]
    assert all(row.is_here for rows in rows_here for row in rows)
    stored, passed = StepRows(groups), StepRows(here)
    for field in fields(stored.meta):
        np.testing.assert_array_equal(getattr(stored.meta, field.name), getattr(passed.meta, field.name))
    rows = np.random.default_rng(0).permutation(12)  # three of them padding
    for found, wanted in zip(
        shards(stored.share(rows, 2, 2, policy)), shards(passed.share(rows, 2, 2, policy)), strict=True
    ):
        for field in fields(SampleBatch):
            a, b = getattr(found, field.name), getattr(wanted, field.name)
            assert (a is None) == (b is None)
            if b is not None:
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b, err_msg=field.name)


@pytest.mark.slow
def test_a_reward_gets_the_texts_where_it_is_and_a_reader_those_it_asks_for(
    engine: Cluster, resources: ResourceManager
) -> None:
    (answers,) = answer(engine, [request(1, LONG)])
    texts = texts_of(group(request(1, LONG), answers).trajectories)
    assert all(len(said.response_text) > 100 and len(said.raw_text) > 100 for said in texts)
    assert texts_at(list(stored_among(answers).values())) == texts
    place, _ = worker_setup("actor_train", devices=(7,))
    pool = TaskPool("rewards.any", resources, place, "tests.fakes:TextReader")

    async def read(handle: object) -> list[Any]:
        return await pool.call_each("length", [(handle, row) for row in range(3)], timeout_s=60)

    first = stored_among(answers)[0]
    try:
        assert asyncio.run(read(first.texts)) == [len(said.response_text) for said in texts]
    finally:
        pool.kill()


class FirstAndLast:
    """A model that gives each row the sum of its first and its last token, and sees no other row."""

    def row_scores(self, rows: Rows) -> np.ndarray:
        ends = np.cumsum(rows.lengths)
        return (rows.input_ids[ends - rows.lengths] + rows.input_ids[ends - 1]).astype(np.float32)[:, None]


@pytest.mark.slow
def test_a_reward_model_reads_stored_answers_and_leaves_them_where_they_are(engine: Cluster) -> None:
    (answers,) = answer(engine, [request(1, LONG)])
    waiting = group(request(1, LONG), answers)
    way = AnswerReading(label=0, retemplate=False, max_length=3, cuts_left=False)
    reader = AnswerReader("rewards.math", cast(Any, None), {"math": way}, None)
    (scored,) = RewardModel(reader, cast(Any, FirstAndLast())).score([waiting])
    assert not any(row.is_here for row in scored.trajectories)
    assert [row.reward for row in scored.trajectories[:2]] == [3 + 11, 3 + 11]
    assert (scored.trajectories[2].failure, math.isnan(scored.trajectories[2].reward)) == ("broke", True)
