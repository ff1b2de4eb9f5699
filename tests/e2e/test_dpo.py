"""Direct preference optimization as a user starts it: it learns, validates on held-out pairs, shows its own table, and
resumes bit for bit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.runs import Run, comparable

SHORT = (
    "max_steps=6", "eval_steps=6", "save_steps=3", "actor_train.training_args.warmup_steps=0",
    "actor_train.training_args.per_device_train_batch_size=32",
)  # fmt: skip
MEGATRON = (
    "actor_train.strategy_args={strategy_name: megatron_train, strategy_config: {}}",
    "actor_train.model_args.disable_gradient_checkpointing=false",
)
FSDP2 = (
    "actor_train.strategy_args={strategy_name: fsdp2_train, strategy_config: {}}", "num_gpus_per_node=2",
    "actor_train.device_mapping=[0,1]", "actor_train.training_args.per_device_train_batch_size=16",
)  # fmt: skip
LORA = ("actor_train.model_args.lora_target=all-linear", "reference=null")


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [(), MEGATRON, FSDP2, LORA],
    ids=["deepspeed", "megatron", "fsdp2", "lora"],
)
def test_it_learns_and_goes_on_from_a_checkpoint_bit_for_bit(
    strategy: tuple[str, ...], sort_data: Path, start_run: Callable[..., Run]
) -> None:
    whole = start_run(sort_data, "tiny_sort_dpo", *SHORT, *strategy, pipeline="dpo").finished()
    first, last = whole.metrics[0], whole.metrics[6]
    assert (first["val/accuracy"], first["val/loss"]) == pytest.approx((0.5, np.log(2)), abs=1e-3)
    assert last["val/loss"] < first["val/loss"] and last["val/accuracy"] > 0.55
    assert whole.metrics[1]["train/loss"] == pytest.approx(np.log(2), abs=1e-3)
    assert "step 6/6  loss " in whole.text and "  accuracy " in whole.text
    saved = whole.output_dir / "checkpoints" / "step_000003"
    assert (saved / "hf_model" / "config.json").is_file() and (saved / "hf_model" / "tokenizer.json").is_file()
    assert (saved / "reference_log_probs.npz").is_file()

    again = start_run(
        sort_data, "tiny_sort_dpo", *SHORT, *strategy, f"resume_from_checkpoint={saved}", pipeline="dpo", name="again"
    ).finished()
    for step in (4, 5, 6):
        assert comparable(again.metrics[step]) == comparable(whole.metrics[step])
