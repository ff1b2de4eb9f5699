"""ulysses_size: how a batch is counted with it, and where it is refused."""

from typing import Any

import pytest

from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.parts import role_facts
from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.describe import batch_rows, describe
from roll.configs.plan.layout import ParallelSizes, parallel_sizes
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.packing import model_problems
from roll.configs.tables.roles import ROLES
from tests.helpers.cases import cases
from tests.helpers.configs import checked, config, problems

SIZE = "actor_train.model_args.ulysses_size"
EIGHT = {"actor_train.device_mapping": "list(range(0, 8))", "actor_infer.device_mapping": [0]}
FOUR_SHARE = EIGHT | {SIZE: 4}


@pytest.mark.parametrize("strategy", ["deepspeed_train", "fsdp2_train"])
def test_batches_are_counted_by_ranks_that_have_rows_of_their_own(strategy: str) -> None:
    made = config(FOUR_SHARE | {"actor_train.strategy_args.strategy_name": strategy})
    plan = build_plan(made)
    assert parallel_sizes(made.actor_train) == ParallelSizes(data=2, sequence=4)
    assert (plan.actor_train.dp_size, plan.actor_train.samples_per_update) == (2, 16 * 2 * 2)
    shown = describe(made, plan, batch_rows(made, plan))
    assert "64 per update (16 x 2 x 8 / 4)" in shown
    assert "8 workers (sequence parallel 4, rows packed)" in shown


def test_a_step_that_does_not_split_is_told_with_the_ranks_that_share() -> None:
    (said,) = problems(FOUR_SHARE | {"actor_train.training_args.gradient_accumulation_steps": 3})
    assert (
        "updates of 96 (actor_train.training_args.per_device_train_batch_size 16 x gradient_accumulation_steps 3 x 2 "
        "data-parallel ranks, which are 8 / actor_train.model_args.ulysses_size 4)."
    ) in said


@cases("changes, said")
def test_what_cannot_share_sequences_is_refused_before_the_run(changes: dict[str, Any], said: str) -> None:
    found = problems(EIGHT | changes)
    assert any(said in text for text in found), found


@pytest.mark.parametrize("name", ["model_args.ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size"])
def test_verls_name_is_taken(name: str) -> None:
    made = checked(EIGHT | {f"actor_train.{name}": 4}).config
    assert made is not None and made.actor_train.model_args.ulysses_size == 4


def problems_of(size: int, model: dict[str, Any]) -> list[str]:
    made = config(EIGHT | {SIZE: size, "actor_train.model_args.model_name_or_path": "org/model"})
    return [problem.text for problem in model_problems(Choice(ROLES["actor_train"], made.actor_train), model)]


def test_heads_have_to_divide_and_key_value_heads_need_not() -> None:
    assert problems_of(4, {"num_attention_heads": 12, "num_key_value_heads": 2}) == []
    assert problems_of(8, {"num_attention_heads": 12, "num_key_value_heads": 2}) == [
        f"{SIZE}: 8 does not divide the 12 attention heads of org/model."
    ]
    assert problems_of(8, {"text_config": {"num_attention_heads": 12}}) != []


def test_a_model_that_cannot_be_packed_cannot_share_sequences() -> None:
    layers = {"num_attention_heads": 4, "layer_types": ["full_attention", "linear_attention"]}
    (said,) = problems_of(2, layers | {"model_type": "qwen3_next"})
    assert "ulysses_size: 2 with" in said and "layers that carry a state from token to token" in said
    (said,) = problems_of(2, layers)
    assert said.startswith(f"{SIZE}: 2 with org/model, whose config.json has layers of type linear_attention")
    assert "Set it to 1;" in said


@cases("key, value")
def test_frequencies_that_follow_the_positions_of_a_rank_are_refused(key: str, value: dict[str, Any]) -> None:
    (said,) = problems_of(2, {"num_attention_heads": 4, key: value})
    assert said.startswith(f"{SIZE}: 2 with org/model, whose config.json has rope_type ")
    assert problems_of(1, {"num_attention_heads": 4, key: value}) == []
    assert problems_of(2, {"num_attention_heads": 4, key: {"rope_type": "yarn", "factor": 4.0}}) == []
    assert problems_of(2, {"num_attention_heads": 4, key: None}) == []


def test_memory_counts_a_ranks_part_of_a_pack() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape, why_not = model_shape(sizes | {"intermediate_size": 96, "vocab_size": 100, "model_type": "qwen2"})
    assert shape is not None, why_not

    def tokens(size: int) -> tuple[int, int]:
        reference = {"strategy_args": {"strategy_name": "fsdp2_infer"}, "model_args": {"ulysses_size": size}}
        made = config({"reference": reference | {"device_mapping": [0, 1]}, "enable_reference": True, SIZE: size})
        plan, worker = build_plan(made), made.reference
        assert worker is not None
        trains = role_facts(plan, ROLES["actor_train"], made.actor_train, shape, None).train_tokens
        return trains, role_facts(plan, ROLES["reference"], worker, shape, None).score_tokens

    assert tokens(1) == (16 * 44, 16 * 44)
    assert tokens(2) == (8 * 44, 8 * 44)
