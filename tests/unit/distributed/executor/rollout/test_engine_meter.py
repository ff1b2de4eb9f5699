"""What an engine's time and tokens went to, on a clock that goes when it is told."""

import numpy as np
import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.rollout.engine_meter import EngineMeter, recomputed
from roll.distributed.strategy.base import State
from roll.types.rollout import FIRST_IN_LINE, Generation, GenerationRequest, SamplingParams
from roll.utils.worker_usage import TraceOptions
from tests.helpers.clock import Clock


def made(keeps_kv: bool = False) -> tuple[EngineMeter, Clock]:
    clock = Clock()
    blueprint = Blueprint("actor_infer", 1, 2, 0, 0, "cpu", "", WorkerConfig(), keeps_kv=keeps_kv)
    return EngineMeter(blueprint, clock), clock


def request(num_prompt: int, num_samples: int = 1, order: int = 0) -> GenerationRequest:
    return GenerationRequest("r", np.zeros(num_prompt, np.int32), SamplingParams(8), num_samples, order=order)


def answer(versions: list[int]) -> Generation:
    num = len(versions)
    return Generation(np.zeros(num, np.int32), np.zeros(num, np.float32), np.array(versions, np.int32), "stop")


def test_an_engine_is_away_before_it_is_held_before_it_samples_and_the_rest_is_idle() -> None:
    meter, clock = made()
    clock.now += 1  # idle
    meter.begin(request(4, 2))
    clock.now += 2  # sampling
    meter.hold()
    clock.now += 3  # held
    meter.leave(frozenset({State.KV_CACHE, State.WEIGHTS}))
    clock.now += 4  # away
    meter.come_back(frozenset({State.WEIGHTS}))
    clock.now += 5  # a part still is
    meter.come_back(frozenset({State.KV_CACHE}))
    clock.now += 6  # held
    meter.go_on()
    clock.now += 7  # sampling
    meter.answered(request(4, 2), answer([0]))
    clock.now += 8  # still, the other answer
    meter.cut(1)
    clock.now += 9  # idle
    usage = meter.take(TraceOptions())
    assert usage.seconds == {"idle": 10.0, "sampling": 17.0, "held": 9.0, "away": 9.0}
    assert usage.wall_s == 45.0
    assert usage.fraction("sampling") + usage.fraction("held", "away") + usage.fraction("idle") == pytest.approx(1)


def test_tokens_are_those_of_answers_that_ended_and_validation_counts_apart() -> None:
    meter, _ = made()
    meter.begin(request(4, 2, order=7))
    meter.answered(request(4, 2, order=7), answer([3, 3, 3]))
    meter.answered(request(4, 2, order=7), answer([3]))
    meter.begin(request(5, order=FIRST_IN_LINE))
    meter.answered(request(5, order=FIRST_IN_LINE), answer([3, 3]))
    counts = meter.take(TraceOptions()).counts
    assert (counts["sampled_tokens"], counts["other_tokens"], counts["prompt_tokens"]) == (4, 2, 9)
    prompts = 4 * 5 / 2 + 5 * 6 / 2
    answers = (3 * 4 + 3 * 4 / 2) + (1 * 4 + 1) + (2 * 5 + 2 * 3 / 2)
    assert counts["pairs"] == prompts + answers


def test_what_new_weights_find_under_way_is_computed_anew_unless_the_engine_keeps_it() -> None:
    assert recomputed(4, np.array([1, 1, 1, 2, 2])) == 7
    assert recomputed(4, np.array([1, 2, 2, 5])) == 5 + 7
    assert recomputed(4, np.array([3, 3])) == recomputed(4, np.zeros(0, np.int32)) == 0
    for keeps_kv, count in ((False, 7), (True, 0)):
        meter, _ = made(keeps_kv)
        meter.begin(request(4))
        meter.answered(request(4), answer([1, 1, 1, 2, 2]))
        assert meter.take(TraceOptions()).counts.get("recomputed_tokens", 0) == count
