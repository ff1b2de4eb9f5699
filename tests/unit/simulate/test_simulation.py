"""Whole runs on the virtual clock: by hand, seeded, and in the order of a published comparison."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.configs.plan.batch_plan import RolloutBounds
from roll.simulate.engines import Engines, Group
from roll.simulate.setup import Costs, Devices, LogNormal, Setup
from roll.simulate.simulation import Report, simulate
from tests.unit.simulate.schedules import AT_ONCE, Given, costs, setup

SYNC, ONE_AHEAD = RolloutBounds(1), RolloutBounds(1, ahead=1, max_staleness=1)


def step_seconds(report: Report) -> list[float]:
    return [step.seconds for step in report.steps]


def test_a_synchronous_step_is_rollout_then_training_then_publish() -> None:
    """Answers of 3 and 5 tokens share the engine for 3 steps of 2 s, then 2 of 1 s: 8 s. 8 + 2 * 6 tokens of training
    at 4 a second: 5 s. Publish .5 s, driver .25 s."""
    made = costs(decode_s=((1, 1.0), (2, 2.0)), train_tokens_per_s=4.0, publish_s=0.5, driver_s=0.25)
    report = simulate(setup([[3, 5]], SYNC, costs=made, workload=Given([[3, 5]], prompt=6)), 3)
    assert step_seconds(report) == pytest.approx([13.75] * 3)
    assert report.steps[0].phases == pytest.approx(
        {"rollout": 8.0, "gather": 0.25, "score": 0.0, "train_actor": 5.0, "weight_sync": 0.5, "other": 0.0}
    )
    assert (report.fraction("busy"), report.fraction("held")) == pytest.approx((8 / 13.75, 0.5 / 13.75))
    assert report.trainer_busy_fraction == pytest.approx(5.5 / 13.75)
    assert report.trained_tokens_per_s == pytest.approx(8 / 13.75) and report.useful_fraction == pytest.approx(1.0)
    assert report.staleness_max == 0


def test_one_group_ahead_hides_training_behind_rollout() -> None:
    """Groups of one answer of 4 s, training 2 s. Groups 0 and 1 begin at 0; step 0 takes 0 at 4 and publishes at 6,
    when group 2 begins. Step 1 has group 1 at once, publishes at 8; group 2 ends at 10. And so on: two take 6 s."""
    made = costs(train_tokens_per_s=2.0)
    report = simulate(setup([[4]], ONE_AHEAD, costs=made), 6, warmup=0)
    assert step_seconds(report) == pytest.approx([6.0, 2.0, 4.0, 2.0, 4.0, 2.0])
    assert [step.groups for step in report.steps] == [(0,), (1,), (2,), (3,), (4,), (5,)]
    assert [step.ages for step in report.steps] == [(0,), (1,), (1,), (1,), (1,), (1,)]
    synchronous = simulate(setup([[4]], SYNC, costs=made), 6)
    assert synchronous.step_s == pytest.approx(6.0) and report.step_s == pytest.approx(20 / 6)


def test_trainer_and_engine_slow_each_other_down_while_both_work() -> None:
    """Groups of one answer of 4 s, training 2 s, each half as fast beside the other. Step 0 takes group 0 at 4, when
    nothing else runs: group 1 has ended as well. Training is alone until 6, when group 2 begins; step 1 takes group 1
    at once and needs 4 s beside group 2, of which 2 tokens come meanwhile; the other two take 2 s. Step 2 trains beside
    group 3, and so on."""
    made = costs(train_tokens_per_s=2.0, beside=2.0)
    report = simulate(setup([[4]], ONE_AHEAD, costs=made), 4, warmup=0)
    assert step_seconds(report) == pytest.approx([6.0, 4.0, 6.0, 4.0])
    assert report.train_busy_s == pytest.approx(2.0 + 4.0 + 4.0 + 4.0)
    shared = setup([[4]], RolloutBounds(1), is_shared=True, costs=made)
    assert step_seconds(simulate(shared, 2, warmup=0)) == pytest.approx([6.0, 6.0])
    turns = costs(turn_s=1.0, beside=2.0)
    partly = setup([[2], [10]], RolloutBounds(1, 1, 1, 2), devices=Devices(1, 2, common=1), costs=turns)
    assert step_seconds(simulate(partly, 1, warmup=0)) == pytest.approx([4.0]), "a turn takes its plain time"


def test_shared_devices_freeze_the_tail_and_resume_it_in_the_next_step() -> None:
    """Groups of 2 s and 10 s; one is trained in each step, one more may run. A turn takes 1 s, training 3 s: step 0
    takes group 0 at 2 s, when the other has 8 s to go and is away until 7; step 1 takes group 2 at 9 s, and step 2 has
    to wait for the 6 s that are left of group 1."""
    made = costs(turn_s=1.0, train_overhead_s=3.0)
    bounds = RolloutBounds(1, ahead=1, max_staleness=2)
    report = simulate(setup([[2], [10]], bounds, is_shared=True, costs=made), 3, warmup=0)
    assert step_seconds(report) == pytest.approx([7.0, 7.0, 11.0])
    assert [step.groups for step in report.steps] == [(0,), (2,), (1,)]
    assert [step.ages for step in report.steps] == [(0,), (0,), (2,)]
    assert report.fraction("away") == pytest.approx((5.0 + 5.0 + 5.0) / 25)


def test_engines_beside_the_trainers_device_go_on_with_what_the_other_leaves() -> None:
    """Two groups at a time on two engines, one a step; training takes 5 s on the device of the first. The group that is
    left at 2 s has 8 tokens to go: 5 while the trainer works, and 3 in the next step, on whichever engine."""
    made = costs(train_tokens_per_s=2 / 5, prefill_tokens_per_s=AT_ONCE)
    bounds = RolloutBounds(1, 1, 1, 2)
    for lengths in ([[2], [10]], [[10], [2]]):  # the long one begins on the first engine, or on the second
        partly = setup(lengths, bounds, devices=Devices(1, 2, common=1), costs=made)
        report = simulate(partly, 1, warmup=0)
        assert step_seconds(report) == pytest.approx([7.0])
        whole = simulate(replace(partly, devices=Devices(1, 2, common=1, leaving=2)), 1, warmup=0)
        assert (report.num_sampled, whole.num_sampled) == pytest.approx((2 + 2 + 5, 2 + 2))
        assert report.engines["away"] == pytest.approx(5.0) and whole.engines["away"] == pytest.approx(10.0)


@settings(max_examples=100)
@given(
    num_engines=st.integers(1, 4),
    per_engine=st.integers(1, 2),
    train=st.integers(1, 8),
    ratio=st.integers(0, 6),
    slots=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_whatever_is_shared_each_group_is_trained_once_within_the_bound_and_what_it_sampled_is_whole(
    num_engines: int,
    per_engine: int,
    train: int,
    ratio: int,
    slots: int,
    seed: int,
) -> None:
    infer = num_engines * per_engine
    bounds = RolloutBounds(3, ratio, 1, 2)
    made = Setup(
        bounds,
        2,
        Devices(train, infer, per_engine, common=min(train, infer)),
        LogNormal(median=20, cap=200, prompt=5, seed=seed),
        Costs(train_tokens_per_s=50.0),
        max_running=slots,
    )
    report = simulate(made, 5, warmup=0)
    trained = [number for step in report.steps for number in step.groups]
    assert len(set(trained)) == len(trained) == 15
    assert report.staleness_max <= 2
    for step in report.steps:
        lengths = sum(int(made.workload.group(number, 2).lengths.sum()) for number in step.groups)
        assert step.num_tokens == lengths
    assert report.num_sampled >= sum(step.num_tokens for step in report.steps) - 1e-3


def test_prefills_and_growing_contexts_cost_their_seconds() -> None:
    """20 tokens of prompt at 10 a second, once for both answers; with a second for each token in the cache the integral
    of 1 + 2 v over 2 tokens of two answers is 6."""
    made = costs(prefill_tokens_per_s=10.0)
    once = setup([[4, 1]], SYNC, costs=made, workload=Given([[4, 1]], prompt=20))
    assert simulate(once, 1).step_s == pytest.approx(2.0 + 4.0)
    growing = costs(decode_context_s=1.0)
    assert simulate(setup([[2, 2]], SYNC, costs=growing), 1).step_s == pytest.approx(6.0)


def test_answers_take_their_slots_in_order() -> None:
    assert simulate(setup([[3, 5, 1]], SYNC, max_running=2), 2).step_s == pytest.approx(5.0)
    assert simulate(setup([[3, 5, 1]], SYNC, max_running=1), 2).step_s == pytest.approx(9.0)


def test_waiting_groups_take_their_slots_by_their_numbers() -> None:
    engines = Engines(costs(), 1, slots=1)
    for number in (5, 7, 3):
        engines.begin(Group(number, 0, 0, [2]))
    engines.run_until(lambda: len(engines.ended) == 3)
    assert [group.number for group in engines.ended] == [5, 3, 7]


def test_a_tail_that_is_dropped_shortens_what_is_trained_and_the_engines_go_on_without_it() -> None:
    """Two groups a step of three that are started; lengths 2, 4 and 9 over and over."""
    dropping = RolloutBounds(2, ahead=1, unfinished="drop")
    report = simulate(setup([[2], [4], [9]], dropping, group_size=1), 4, warmup=0)
    assert step_seconds(report) == pytest.approx([4.0] * 4)
    assert [step.num_tokens for step in report.steps] == [6] * 4 and report.staleness_max == 0
    deferring = replace(dropping, unfinished="defer")
    later = simulate(setup([[2], [4], [9]], deferring, group_size=1), 3, warmup=0)
    assert [step.groups for step in later.steps] == [(0, 1), (3, 4), (2, 5)]
    assert step_seconds(later) == pytest.approx([4.0, 4.0, 9.0])


def run(bounds: RolloutBounds, devices: Devices, cap: int = 16_384, num_steps: int = 3) -> Report:
    return simulate(Setup(bounds, 16, devices, LogNormal(cap=cap)), num_steps)


def test_equal_seeds_give_equal_runs() -> None:
    made = setup([[1]], RolloutBounds(4, 4, 1, 2), group_size=4, workload=LogNormal(20, cap=200, seed=3))
    made = replace(made, devices=Devices(1, 2), max_running=3, costs=costs(train_tokens_per_s=50.0, publish_s=1.0))
    assert simulate(made, 6) == simulate(made, 6)
    assert simulate(made, 6) != simulate(replace(made, workload=LogNormal(20, cap=200, seed=4)), 6)


SHARED = Devices.shared(16)


def test_schedules_come_in_the_order_of_their_tails() -> None:
    """16 devices, 128 groups of 16 answers, cap 16384: shared synchronous training is slower than every schedule that
    runs ahead; frozen and resumed tails beat a disjoint run of half a step ahead; more staleness is faster."""
    base = run(RolloutBounds(128), SHARED)
    half = run(RolloutBounds(128, 64, 1, 1), Devices(8, 8))
    quarter = run(RolloutBounds(128, 32, 1, 1), SHARED)
    two = run(RolloutBounds(128, 64, 1, 2), SHARED)
    disjoint = run(RolloutBounds(128), Devices(8, 8))
    assert disjoint.step_s > base.step_s > half.step_s > quarter.step_s > two.step_s
    assert base.step_s == pytest.approx(281, rel=0.05)
    assert base.step_s / two.step_s > 1.4 and two.staleness_mean == pytest.approx(0.5, abs=0.05)
    assert (quarter.staleness_max, two.staleness_max, base.staleness_max) == (1, 2, 0)


def test_a_very_heavy_tail_is_twice_as_fast_at_a_mean_staleness_of_one_half() -> None:
    """64 groups, cap 32768."""
    base, fast, fresh = (
        run(bounds, SHARED, cap=32_768, num_steps=8)
        for bounds in (RolloutBounds(64), RolloutBounds(64, 32, 1, 2), RolloutBounds(64, 16, 1, 1))
    )
    assert base.step_s / fast.step_s >= 2.0 and fast.staleness_max == 2
    assert fast.staleness_mean == pytest.approx(0.5, abs=0.02)
    assert base.step_s / fresh.step_s >= 1.6 and fresh.staleness_max == 1
