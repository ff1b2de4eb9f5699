"""Whole runs whose roles compute what rows have in common once: the steps of runs that do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import MEASURED, Run

StartRun = Callable[..., Run]
SHORT = ("max_steps=3", "eval_steps=-1", "save_steps=-1")
REFERENCE = (
    "use_kl_loss=true", "kl_loss_coef=0.01", "reference.strategy_args.strategy_name=fsdp2_infer",
    "reference.model_args.dtype=fp32", "reference.device_mapping=[0,1]",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "roles"),
    [
        pytest.param("tiny_sort_fsdp2", REFERENCE, ("actor_train", "reference"), id="fsdp2-reference"),
        pytest.param("tiny_sort_ppo", (), ("actor_train", "critic"), id="deepspeed-critic"),
    ],
)
def test_a_run_takes_the_steps_of_one_that_shares_nothing(
    name: str, options: tuple[str, ...], roles: tuple[str, ...], sort_data: Path, start_run: StartRun
) -> None:
    """Rewards, losses, gradients and KL of the first step, and rewards of those after it: rounding differs by 1e-6,
    and a token that is sampled another way by it would show in a reward of one response in 256."""
    shares = [f"+{role}.use_prefix_sharing=on" for role in roles]
    metrics = []
    for way, more in (("off", ()), ("on", shares)):
        run = start_run(sort_data, name, *SHORT, *options, *more, name=way)
        assert run.wait() == 0, run.text
        metrics.append(run.metrics)
    apart, shared = metrics
    for step in (1, 2, 3):
        assert shared[step]["goodput/prefix_sharing_factor"] > 1.2, "prompts are longer than responses"
        assert shared[step]["rollout/reward_mean"] == pytest.approx(apart[step]["rollout/reward_mean"], abs=0.02)
    compared = {n for n in apart[1] if not n.startswith(("time/", "system/", *MEASURED)) and "diff" not in n}
    assert {"actor/grad_norm", "rollout/reward_mean"} < compared
    for metric in sorted(compared):
        assert shared[1][metric] == pytest.approx(apart[1][metric], rel=1e-3, abs=1e-5), metric
