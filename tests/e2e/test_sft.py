"""Supervised fine-tuning as a user starts it: it learns, validates, shows its own table, and resumes bit for bit,
with its length given in epochs as well."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run, comparable

SHORT = ("max_steps=6", "eval_steps=3", "save_steps=3", "sft_train.training_args.warmup_steps=0")
ROWS_PER_STEP = 128
MEGATRON = (
    "sft_train.strategy_args={strategy_name: megatron_train, strategy_config: {}}",
    "sft_train.model_args.disable_gradient_checkpointing=false",
)


FSDP2 = (
    "sft_train.strategy_args={strategy_name: fsdp2_train, strategy_config: {}}", "num_gpus_per_node=2",
    "sft_train.device_mapping=[0,1]",
)  # fmt: skip
ULYSSES = (*FSDP2, "sft_train.model_args.ulysses_size=2", "sft_train.use_sequence_packing=true")
LORA = ("sft_train.model_args.lora_target=all-linear", "sft_train.model_args.lora_rank=16")


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [(), MEGATRON, ULYSSES, LORA],
    ids=["deepspeed", "megatron", "ulysses", "lora"],
)
def test_it_learns_and_goes_on_from_a_checkpoint_bit_for_bit(
    strategy: tuple[str, ...], sort_data: Path, start_run: Callable[..., Run]
) -> None:
    whole = start_run(sort_data, "tiny_sort_sft", *SHORT, *strategy, pipeline="sft").finished()
    losses = [whole.metrics[step]["train/nll_mean"] for step in range(1, 7)]
    validated = [whole.metrics[step]["val/nll_mean"] for step in (0, 3, 6)]
    assert losses[-1] < losses[0] and validated == sorted(validated, reverse=True)
    assert "step 6/6  loss " in whole.text and "  val " in whole.text
    saved = whole.output_dir / "checkpoints" / "step_000003"
    assert (saved / "hf_model" / "config.json").is_file() and (saved / "hf_model" / "tokenizer.json").is_file()

    num_rows = len((sort_data / "train.jsonl").read_text().splitlines())
    epochs = f"{5.5 * ROWS_PER_STEP / num_rows:.6f}"  # the sixth step goes beyond them
    length = (*SHORT, "max_steps=null", f"num_train_epochs={epochs}", f"resume_from_checkpoint={saved}")
    resumed = start_run(sort_data, "tiny_sort_sft", *length, *strategy, pipeline="sft", name="again").finished()
    assert f"of {num_rows} rows, {ROWS_PER_STEP} in a step, are 6 steps" in resumed.text
    assert "max_steps" not in resumed.text, "it is that of the checkpoint"
    for step in (4, 5, 6):
        assert comparable(resumed.metrics[step]) == comparable(whole.metrics[step])


@pytest.mark.slow
def test_it_learns_to_look_at_pictures(count_data: Path, start_run: Callable[..., Run]) -> None:
    """Whoever does not look is right one time in four: of the two tokens of an answer the first costs ln 4. A resumed
    run takes the same rows and pictures."""
    length = ("max_steps=40", "eval_steps=20", "save_steps=20")
    whole = start_run(count_data, "tiny_count_sft", *length, example="tiny-count", pipeline="sft").finished()
    validated = [whole.metrics[step]["val/nll_mean"] for step in (0, 20, 40)]
    chance = math.log(4) / 2
    assert validated[0] > 0.9 * chance and validated[-1] < 0.7 * chance
    saved = whole.output_dir / "checkpoints" / "step_000020"
    again = start_run(
        count_data, "tiny_count_sft", *length, f"resume_from_checkpoint={saved}",
        example="tiny-count", pipeline="sft", name="again",
    ).finished()  # fmt: skip
    assert comparable(again.metrics[40]) == comparable(whole.metrics[40])
