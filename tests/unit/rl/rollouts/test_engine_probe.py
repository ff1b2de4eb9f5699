"""What is asked of engines where no trained token is of the weights that learn."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from roll.distributed.executor.processes.worker_process import Failure
from roll.rl.alarms import GAP, PROBE_GAP, EngineProbe, GapAlarm
from roll.types.batch import SampleBatch, SampleSet
from roll.types.rollout import (
    FIRST_IN_LINE,
    Generation,
    GenerationRequest,
    SamplingParams,
    Task,
    Trajectory,
    TrajectoryGroup,
)

PROMPT = np.array([5, 6], np.int32)


def generation(*log_probs: float, version: int = 3, finish: Any = "length") -> Generation:
    count = len(log_probs)
    return Generation(
        np.full(count, 9, np.int32), np.array(log_probs, np.float32), np.full(count, version, np.int32), finish
    )


@dataclass
class Replies:
    replies: Mapping[int, object]

    def replies_so_far(self) -> Mapping[int, object]:
        return self.replies


@dataclass
class Engines:
    replies: Mapping[int, object]
    asked: list[GenerationRequest] = field(default_factory=list)

    def probe(self, request: GenerationRequest) -> Replies:
        self.asked.append(request)
        return Replies(self.replies)


class Placement:
    def hold(self, *claims: object) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass
class Clusters:
    """A trainer that finds every token as likely as `log_prob` says."""

    log_prob: float
    placement: Placement = field(default_factory=Placement)
    scored: list[SampleSet] = field(default_factory=list)
    weights: str = "weights"
    shares_prefixes: bool = False

    @property
    def actor_train(self) -> Clusters:
        return self

    def log_probs(self, samples: SampleSet, temperature: float) -> dict[int, np.ndarray]:
        assert temperature == 0.7
        self.scored.append(samples)
        return {number: np.full(64, self.log_prob, np.float32) for number in range(8)}


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_rank(batch: SampleBatch, ranks: Sequence[np.ndarray]) -> Any:
        return tuple(batch.select(rows) for rows in ranks)

    def of_rows(scores: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """As long as rows are here: two tokens of the prompt, two of the answer."""
        return {number: values[:4] for number, values in scores.items()}

    monkeypatch.setattr("roll.distributed.executor.step_rows.share", by_rank)
    monkeypatch.setattr("roll.rl.alarms.rows_of_scores", of_rows)


def probe() -> EngineProbe:
    made = EngineProbe(SamplingParams(200, temperature=0.7, min_new_tokens=50), seed=100, alarm=GapAlarm(0.05))
    row = Trajectory.from_generation(PROMPT, generation(-1.0), 0.0, index=0, response_text="")
    long = Trajectory.from_generation(np.arange(9, dtype=np.int32), generation(-1.0), 0.0, index=1, response_text="")
    made.set_probe_prompt([TrajectoryGroup(Task("a", "d", PROMPT), 0, (long, row))])
    return made


def test_the_difference_is_told_of_the_tokens_that_engines_sampled_under_the_weights_that_learn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rank 1 is dead, rank 2 was away, rank 3 answered under older weights: .5 and .25 of rank 0 are left."""
    replies = {
        0: generation(-1.5, -0.75),
        1: Failure(1, "gone", died=True),
        2: generation(finish="moved"),
        3: generation(-9.0, -9.0, version=2),
    }
    asking, engines, clusters = probe(), Engines(replies), Clusters(-1.0)
    asking.send(engines, {}, version=3)  # type: ignore[arg-type]
    (request,) = engines.asked
    np.testing.assert_array_equal(request.prompt_ids, PROMPT)
    assert (request.order, request.num_samples) == (FIRST_IN_LINE, 1)
    assert request.sampling == SamplingParams(16, temperature=0.7, seed=103)
    with caplog.at_level(logging.WARNING):
        assert asking.result(clusters, 2, 0.7, version=3) == {PROBE_GAP: 0.375}  # type: ignore[arg-type]
    assert f"{PROBE_GAP} is 0.375, above log_prob_diff_warning" in caplog.text
    (samples,) = clusters.scored
    assert [len(rank) for rank in samples.shards] == [1, 1]  # type: ignore[arg-type]
    assert asking.result(clusters, 2, 0.7, version=3) == {}  # type: ignore[arg-type]


def test_engines_are_asked_when_steps_cannot_tell() -> None:
    for replies, version in (({0: generation(-1.0, -1.0)}, 4), ({}, 3), ({0: generation(-1.0, -1.0, version=2)}, 3)):
        asking, clusters = probe(), Clusters(-1.0)
        asking.send(Engines(replies), {}, version=3)  # type: ignore[arg-type]
        assert asking.result(clusters, 1, 0.7, version) == {}  # type: ignore[arg-type]
    asking, engines = probe(), Engines({})
    told = [GAP] * 3 + [""] * 21 + [GAP] + [""] * 2
    for version, name in enumerate(told):
        asking.send(engines, {name: 0.0}, version)  # type: ignore[arg-type]
    assert [int(request.request_id.split("-")[1]) for request in engines.asked] == [3, 13, 23, 25]
    engines = Engines({})
    EngineProbe(SamplingParams(5), 0, GapAlarm(1.0)).send(engines, {}, 1)  # type: ignore[arg-type]
    assert not engines.asked
