"""The line that says what bounds a step."""

import pytest

from roll.run.bottleneck import Bottleneck, BottleneckNotice, bottleneck_of
from tests.helpers.cases import cases


def row(bubble: float = 0.5, busy: dict[str, float] | None = None, **phases: float) -> dict[str, float]:
    times = {f"time/{name}_s": seconds for name, seconds in phases.items()}
    fractions = {f"busy/{name}_fraction": value for name, value in (busy or {}).items()}
    return times | fractions | {"goodput/bubble_fraction": bubble}


@cases("metrics, cause, share, text")
def test_the_largest_share_is_named_with_what_would_make_it_smaller(
    metrics: dict[str, float], cause: str, share: float, text: str
) -> None:
    bound = bottleneck_of(metrics)
    assert bound is not None
    assert (bound.cause, bound.share, bound.text) == (cause, pytest.approx(share), text)


def test_a_cause_is_told_once_and_rows_without_times_have_none() -> None:
    assert bottleneck_of({"val/reward_mean": 0.5}) is None
    assert bottleneck_of({"time/rollout_s": 1.0, "time/other_s": 1.0, "time/step_s": 2.0}) is None
    notice = BottleneckNotice()
    causes = "abbbbabaaaabbaa"
    told = [
        (step, line) for step, cause in enumerate(causes) if (line := notice.check(Bottleneck(cause, 0.5, f"{cause}!")))
    ]
    assert told == [(3, "b!"), (9, "a!")]
