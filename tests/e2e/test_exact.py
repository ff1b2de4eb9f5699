"""Whole runs in exact mode: engine and trainer give every sampled token the same log-prob, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Run

StartRun = Callable[..., Run]
EXACT = ("+exact_log_probs=true", "eval_steps=-1")
BF16 = ("actor_train.model_args.dtype=bf16", "actor_infer.model_args.dtype=bf16")


def assert_exact(run: Run, steps: list[int]) -> None:
    assert run.wait() == 0, run.text
    assert sorted(step for step in run.metrics if step) == steps
    for step in steps:
        row = run.metrics[step]
        assert row["train_infer/log_prob_diff_max"] == 0.0, step
        assert row["actor/grad_norm"] > 0, "it did learn"
    assert run.metrics[steps[0]]["actor/ratio_max"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("tiny_sort",), id="deepspeed"),
        pytest.param(("tiny_sort_fsdp2",), id="fsdp2-two-ranks"),
        pytest.param(("tiny_sort_fsdp2", *BF16), id="fsdp2-two-ranks-bf16"),
    ],
)
def test_log_probs_are_equal_in_every_step_and_after_a_resume(
    sort_data: Path, start_run: StartRun, options: tuple[str, ...]
) -> None:
    """Five steps, the last two of them after a resume: weights have changed, rows have joined and left the batch."""
    name, *more = options
    run = start_run(sort_data, name, *EXACT, *more, "max_steps=3", "save_steps=3", name="exact")
    assert_exact(run, [1, 2, 3])
    later = ("max_steps=5", "save_steps=-1", "resume_from_checkpoint=true")
    assert_exact(start_run(sort_data, name, *EXACT, *more, *later, name="exact"), [1, 2, 3, 4, 5])
