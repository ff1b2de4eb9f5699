"""The demo's first step on every strategy that trains: the same rows, and the same figures of the update."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run

StartRun = Callable[..., Run]
ONE_STEP = ("max_steps=1", "eval_steps=-1", "save_steps=-1")
NO_CONFIG = "~actor_train.strategy_args.strategy_config"


@pytest.mark.slow
def test_the_first_update_is_the_same_on_every_trainer(sort_data: Path, start_run: StartRun) -> None:
    """Sampling is seeded and the weights are the same, so all train on the same rows: loss, entropy and gradient norm
    agree to 1e-5 (fp32 sums in another order)."""
    want = start_run(sort_data, "tiny_sort", *ONE_STEP, name="deepspeed_train").finished()
    assert want.metrics[1]["actor/grad_norm"] > 0.01
    for strategy in ("fsdp2_train", "megatron_train"):
        chosen = (f"actor_train.strategy_args.strategy_name={strategy}", NO_CONFIG)
        run = start_run(sort_data, "tiny_sort", *ONE_STEP, *chosen, name=strategy).finished()
        assert run.metrics[1]["rollout/num_tokens"] == want.metrics[1]["rollout/num_tokens"]
        for name in ("actor/pg_loss", "actor/entropy_mean", "actor/grad_norm", "actor/advantage_mean"):
            assert run.metrics[1][name] == pytest.approx(want.metrics[1][name], abs=1e-5, rel=1e-5), (strategy, name)
