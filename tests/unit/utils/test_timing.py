import pytest

from roll.utils.timing import Timer, phase_seconds
from tests.helpers.clock import Clock


def test_nested_phases_count_within_their_parent_and_the_rest_is_other():
    clock = Clock()
    timer = Timer(clock)
    with timer("rollout"):
        clock.now += 4
        with timer("reward"):
            clock.now += 2
    clock.now += 1
    with timer("train_actor"):
        clock.now += 3
    assert timer.metrics() == {
        "time/rollout_s": 6.0,
        "time/rollout/reward_s": 2.0,
        "time/train_actor_s": 3.0,
        "time/other_s": 1.0,
        "time/step_s": 10.0,
    }
    assert phase_seconds(timer.metrics()) == {"rollout": 6.0, "train_actor": 3.0, "other": 1.0}


def test_a_phase_entered_twice_adds_up_also_when_it_raises():
    clock = Clock()
    timer = Timer(clock)
    with timer("sync"):
        clock.now += 1
    with pytest.raises(KeyError), timer("sync"):
        clock.now += 2
        raise KeyError
    assert timer.metrics()["time/sync_s"] == 3.0
    with timer("next"):
        pass
    assert "time/next_s" in timer.metrics(), "the phase that raised was left"


def test_reset_begins_a_new_step():
    clock = Clock()
    timer = Timer(clock)
    with timer("rollout"):
        clock.now += 5
    timer.reset()
    clock.now += 2
    assert timer.metrics() == {"time/other_s": 2.0, "time/step_s": 2.0}


def test_reset_inside_a_phase_is_refused():
    timer = Timer()
    with timer("rollout"), pytest.raises(RuntimeError, match="rollout"):
        timer.reset()


def test_on_enter_hears_the_path_of_each_phase():
    heard: list[str] = []
    timer = Timer(on_enter=heard.append)
    with timer("rollout"), timer("reward"):
        pass
    assert heard == ["rollout", "rollout/reward"]


def test_who_listens_is_told_when_each_phase_began_and_ended():
    clock, heard = Clock(), []
    timer = Timer(clock, on_leave=lambda *phase: heard.append(phase))
    with pytest.raises(KeyError), timer("rollout"):
        clock.now += 1
        with timer("reward"):
            clock.now += 2
        raise KeyError
    assert heard == [("rollout/reward", 101.0, 103.0), ("rollout", 100.0, 103.0)]
