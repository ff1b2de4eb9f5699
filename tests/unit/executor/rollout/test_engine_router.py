"""Which engine gets which request."""

import numpy as np

from roll.distributed.executor.rollout.engine_router import EngineRouter
from roll.types.rollout import GenerationRequest, SamplingParams


def request(*prompt: int, session: str = "") -> GenerationRequest:
    return GenerationRequest("r", np.array(prompt, np.int32), SamplingParams(3), session=session)


def test_different_prompts_go_to_the_least_loaded_engine() -> None:
    router, loads = EngineRouter(), {0: 0, 1: 0, 2: 0}
    for number in range(9):
        loads[router.choose(request(number), loads)] += 8
    assert loads == {0: 24, 1: 24, 2: 24}


def test_equal_prompts_share_an_engine_as_long_as_it_is_not_much_fuller() -> None:
    router = EngineRouter()
    assert router.choose(request(5, 6), {0: 3, 1: 2}) == 1
    assert router.choose(request(5, 6), {0: 3, 1: 10}) == 1
    assert router.choose(request(5, 7), {0: 3, 1: 10}) == 0
    assert router.choose(request(5, 6), {0: 3, 1: 13}) == 0  # more than 1.5 * 3 + 8
    assert router.choose(request(5, 6), {0: 3, 1: 10}) == 0  # where it went last


def test_prompts_are_forgotten_when_everything_is_answered() -> None:
    router = EngineRouter()
    assert router.choose(request(5), {0: 1, 1: 0}) == 1
    assert router.choose(request(5), {0: 0, 1: 0}) == 0


def test_a_session_stays_on_its_engine_until_that_is_gone() -> None:
    router = EngineRouter()
    assert router.choose(request(1, session="episode"), {0: 4, 1: 0}) == 1
    assert router.choose(request(1, 2, 3, session="episode"), {0: 0, 1: 0}) == 1
    assert router.choose(request(1, 2, 3, session="episode"), {0: 0, 1: 5}) == 1
    assert router.choose(request(1, 2, 3, 4, session="episode"), {0: 50}) == 0
    assert router.choose(request(1, 2, 3, 4, 5, session="episode"), {0: 1, 1: 0}) == 0
