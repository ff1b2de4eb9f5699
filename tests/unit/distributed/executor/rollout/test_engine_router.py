"""Which engine gets which request."""

import random

import numpy as np

from roll.distributed.executor.rollout.engine_choice import EngineRouter
from roll.types.rollout import GenerationRequest, SamplingParams


def request(*prompt: int, session: str = "") -> GenerationRequest:
    return GenerationRequest("r", np.array(prompt, np.int32), SamplingParams(3), session=session)


def router_of(*loads: int) -> EngineRouter:
    router = EngineRouter(len(loads))
    for rank, load in enumerate(loads):
        router.add(rank, load)
    return router


def set_loads(router: EngineRouter, *loads: int) -> None:
    for rank, load in enumerate(loads):
        router.add(rank, load - router.load(rank))


def test_prompts_go_to_the_least_loaded_engine_and_are_forgotten_when_answered() -> None:
    router = router_of(0, 0, 0)
    for number in range(9):
        rank = router.choose(request(number))
        assert rank is not None
        router.add(rank, 8)
    assert [router.load(rank) for rank in range(3)] == [24, 24, 24]
    router = router_of(1, 0)
    assert router.choose(request(5)) == 1
    set_loads(router, 0, 0)
    assert router.choose(request(5)) == 0
    router = EngineRouter(3, room=4)
    assert router.choose(request(1, session="a")) == 0
    router.close(2)
    set_loads(router, 3, 0)
    assert router.choose(request(2, session="a")) == 0
    set_loads(router, 4, 0)
    assert router.choose(request(3, session="a")) == 1


def test_the_choice_is_that_of_a_look_at_all_engines_whatever_comes_and_goes() -> None:
    """The rule, written out over all loads, beside the router's own bookkeeping."""
    draw = random.Random(5)
    for _ in range(40):
        num_engines = draw.randint(1, 9)
        router, loads = EngineRouter(num_engines), dict.fromkeys(range(num_engines), 0)
        sessions: dict[str, int] = {}
        prompts: dict[int, int] = {}
        for _ in range(200):
            match draw.choice(["ask"] * 6 + ["answer"] * 4 + ["leave", "come"]):
                case "ask" if loads:
                    prompt, session = draw.randrange(12), draw.choice(["", "", "a", "b", "c"])
                    if not any(loads.values()):
                        prompts.clear()
                    bearable = 1.5 * min(loads.values()) + 8
                    known = (sessions.get(session), prompts.get(prompt))
                    best = [rank for rank in known if rank in loads and loads[rank] <= bearable]
                    expected = (best or [min(loads, key=lambda rank: (loads[rank], rank))])[0]
                    assert router.choose(request(prompt, session=session)) == expected
                    prompts[prompt] = expected
                    if session:
                        sessions[session] = expected
                    count = draw.randint(1, 8)
                    loads[expected] += count
                    router.add(expected, count)
                case "answer" if any(loads.values()):
                    rank = draw.choice([rank for rank, load in loads.items() if load])
                    count = draw.choice([1, loads[rank]])
                    loads[rank] -= count
                    router.add(rank, -count)
                case "leave" if loads:
                    rank = draw.choice(list(loads))
                    del loads[rank]
                    router.leave(rank)
                case "come" if len(loads) < num_engines:
                    rank = draw.choice([rank for rank in range(num_engines) if rank not in loads])
                    loads[rank] = 0
                    router.reopen(rank)
