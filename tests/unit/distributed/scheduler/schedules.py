"""Bounds for schedules that are tried by the hundred."""

from hypothesis import strategies as st

from roll.configs.plan.batch_plan import RolloutBounds, Unfinished


@st.composite
def bounds_that_cannot_deadlock(draw: st.DrawFn) -> RolloutBounds:
    num_groups, interval = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    staleness = draw(st.integers(interval - 1, interval + 2))
    ahead = draw(st.integers(0, (staleness + 1 - interval) * num_groups))
    return RolloutBounds(num_groups, ahead, interval, staleness, grace_s=draw(st.sampled_from([0.0, 0.5, 4.0])))


@st.composite
def bounds_within_a_step(draw: st.DrawFn) -> RolloutBounds:
    """Under which no group outlives its step."""
    num_groups, more = draw(st.integers(1, 5)), draw(st.integers(0, 6))
    kinds: list[Unfinished] = ["carry", "drop", "defer"]
    unfinished = draw(st.sampled_from(kinds))
    grace_s = draw(st.sampled_from([0.0, 0.5, 4.0]))
    if unfinished == "carry":
        return RolloutBounds(num_groups, additional=more)
    return RolloutBounds(num_groups, more, unfinished=unfinished, grace_s=grace_s)


def any_bounds() -> st.SearchStrategy[RolloutBounds]:
    return bounds_that_cannot_deadlock() | bounds_within_a_step()
