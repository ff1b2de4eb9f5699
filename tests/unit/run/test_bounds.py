"""The line that says what bounds a step."""

import pytest

from roll.run.bottleneck import Bottleneck, BottleneckNotice, bottleneck_of


def row(bubble: float = 0.5, busy: dict[str, float] | None = None, **phases: float) -> dict[str, float]:
    times = {f"time/{name}_s": seconds for name, seconds in phases.items()}
    fractions = {f"busy/{name}_fraction": value for name, value in (busy or {}).items()}
    return times | fractions | {"goodput/bubble_fraction": bubble}


@pytest.mark.parametrize(
    "metrics, cause, share, text",
    [
        (
            row(rollout=3.8, train_actor=3.0, score=0.5, other=2.7),
            "rollout",
            0.38,
            "the trainer waits 38% of the time: use more rollout devices, or rollouts that run further ahead "
            "(docs/rollouts.md)",
        ),
        (
            row(busy={"rewards.math": 0.5}, rollout=6.0, train_actor=4.0),
            "rollout",
            0.6,
            "all roles wait 60% of the time for rollouts, whose rewards are busy: raise rewards.math.world_size",
        ),
        (
            row(busy={"rewards.math": 0.4}, rollout=6.0, train_actor=4.0),
            "rollout",
            0.6,
            "the trainer waits 60% of the time: use more rollout devices, or rollouts that run further ahead "
            "(docs/rollouts.md)",
        ),
        (
            row(rollout=4.0, train_actor=3.0, train_critic=2.0, score=1.0),
            "training",
            0.6,
            "engines wait 60% of the time for training: use more training devices, or rollouts that run further ahead "
            "(docs/rollouts.md)",
        ),
        (
            row(bubble=0.1, rollout=6.0, train_actor=4.0),
            "rollout",
            0.6,
            "devices are busy 90% of the time, mostly sampling (60%): use more devices, or compute less",
        ),
        (
            row(bubble=0.3, train=9.0, other=1.0),
            "training",
            0.9,
            "training takes 90%, on devices that are busy 70%: see the trace",
        ),
        (
            row(rollout=2.0, weight_sync=5.0, train_actor=3.0),
            "weights",
            0.5,
            "all roles wait 50% of the time for weights to reach the engines: model_update_frequency, "
            "weight_sync_route",
        ),
        (
            row(rollout=2.0, gather=3.0, other=3.0, train_actor=2.0),
            "driver",
            0.6,
            "devices wait 60% of the time for the driver: use larger batches; the trace shows the reason "
            "(profiler_timeline)",
        ),
        (
            row(rollout=2.0, reward=5.0, train_actor=3.0),
            "rewards",
            0.5,
            "all roles wait 50% of the time for rewards after the rollout: use more devices or processes for them",
        ),
        (
            row(rollout=2.0, validate=5.0, train_actor=3.0),
            "validation",
            0.5,
            "validation takes 50% of the time: use a larger eval_steps, or fewer rows",
        ),
        (
            row(rollout=2.0, checkpoint=5.0, train_actor=3.0),
            "checkpoint",
            0.5,
            "checkpoints take 50% of the time: use a larger save_steps, or a faster disk",
        ),
    ],
)
def test_the_largest_share_is_named_with_what_would_make_it_smaller(
    metrics: dict[str, float], cause: str, share: float, text: str
) -> None:
    bound = bottleneck_of(metrics)
    assert bound is not None
    assert (bound.cause, bound.share, bound.text) == (cause, pytest.approx(share), text)


def test_a_row_without_times_or_without_workers_has_no_line() -> None:
    assert bottleneck_of({"val/reward_mean": 0.5}) is None
    assert bottleneck_of({"time/rollout_s": 1.0, "time/other_s": 1.0, "time/step_s": 2.0}) is None


def test_a_cause_is_told_once_when_it_has_held_for_three_steps() -> None:
    notice = BottleneckNotice()
    causes = "abbbbabaaaabbaa"
    told = [
        (step, line) for step, cause in enumerate(causes) if (line := notice.check(Bottleneck(cause, 0.5, f"{cause}!")))
    ]
    assert told == [(3, "b!"), (9, "a!")]
