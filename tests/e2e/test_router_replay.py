"""A mixture of experts that learns with the experts of the pass before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.helpers.cases import cases
from tests.helpers.runs import Run
from tests.parity.megatron import models

StartRun = Callable[..., Run]


@pytest.mark.slow
@cases("example, mode, divided")
def test_two_updates_of_a_step_train_with_the_same_experts(
    example: str, mode: str, divided: tuple[str, ...], sort_data: Path, start_run: StartRun, tmp_path: Path
) -> None:
    """Rows and what was told of them go from the ranks that scored to those that train, by way of the object store. Of
    ranks that divide the experts, each has those that a row of another chose."""
    tokenizer = AutoTokenizer.from_pretrained(sort_data / "model")
    size = {"vocab_size": len(tokenizer), "head_dim": 32}  # vLLM has no attention on CPUs for narrower heads
    model = models.make(tmp_path / "mixture", "qwen3_moe", **size)
    tokenizer.save_pretrained(model)
    steps = ("max_steps=2", "eval_steps=-1", "save_steps=-1", "ppo_epochs=2", f"pretrain={model}", *divided)
    all_rows = "skip_idle_rows=false"  # rewards of weights that are drawn are alike
    run = start_run(sort_data, example, "--all", *steps, all_rows, f"actor_train.router_replay.mode={mode}").finished()
    assert ("router_replay R2 trains with the experts that this pass chooses" in run.text) == (mode == "R2")
    for step in (1, 2):
        assert run.metrics[step]["actor/num_updates"] == 2
        assert run.metrics[step]["train_infer/log_prob_diff_max"] < 1e-4
