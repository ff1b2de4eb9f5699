"""What a person reads before a run."""

import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.describe import batch_rows, describe
from tests.helpers.configs import config


def text(changes: dict[str, object] | None = None) -> str:
    made = config(changes)
    plan = build_plan(made)
    return describe(made, plan, batch_rows(made, plan))


def test_a_plan_without_a_validation_section_promises_none() -> None:
    assert "validate  never: there is no section validation" in text()
    given = {"data_args": {"file_name": "val.jsonl"}}
    assert "validate  at the start, every 10 steps, at the end" in text({"validation": given})
    assert "validate  never\n" in text({"validation": given, "eval_steps": -1})


@pytest.mark.parametrize(
    "keys, said",
    [
        ({"val_before_train": False}, "every 10 steps, at the end"),
        ({"val_before_train": False, "eval_steps": 2}, "every 2 steps, at the end"),
        ({"val_before_train": True, "eval_steps": -1}, "at the start"),
        ({"val_before_train": False, "eval_steps": 0}, "never"),
    ],
)
def test_the_plan_says_when_the_model_is_validated(keys: dict[str, object], said: str) -> None:
    assert f"validate  {said}\n" in text({"validation": {"data_args": {"file_name": "val.jsonl"}}, **keys})


def test_the_device_map_shows_who_shares_who_is_apart_and_what_is_free() -> None:
    shown = text(
        {
            "num_nodes": 2,
            "actor_train.device_mapping": "list(range(0,8))",
            "actor_train.training_args.per_device_train_batch_size": 4,
            "actor_infer.device_mapping": "list(range(8,12))",
            "actor_infer.num_gpus_per_worker": 2,
            "reference": {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": "list(range(0,8))"},
            "enable_reference": True,
        }
    )
    assert "Devices: 2 nodes x 8" in shown
    assert "node 0  0..7    actor_train, reference (take turns)" in shown
    assert "node 1  8..11   actor_infer" in shown
    assert "12..15  free" in shown
    assert "actor_train and reference share 0..7 and take turns" in shown
    assert "actor_train and actor_infer are disjoint" in shown
    assert "2 workers (tensor parallel 2)" in shown


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, None),
        (
            {"actor_infer.device_mapping": [0, 1]},
            "takes 0.6 of each GPU (gpu_memory_utilization, by default: it shares them)",
        ),
        (
            {
                "actor_infer.device_mapping": [0, 1],
                "actor_infer.strategy_args.strategy_config": {"gpu_memory_utilization": 0.75},
            },
            "takes 0.75 of each GPU (gpu_memory_utilization)",
        ),
        (
            {"actor_infer.device_mapping": [0, 1], "actor_infer.strategy_args.strategy_name": "sglang"},
            "takes 0.6 of each GPU (mem_fraction_static, by default: it shares them)",
        ),
    ],
)
def test_the_share_of_an_engine_is_shown_where_it_is_given_or_follows_from_the_placement(
    changes: dict[str, object], line: str | None
) -> None:
    shown = [each for each in text(changes).splitlines() if "of each GPU" in each]
    assert shown == ([] if line is None else [f"  actor_infer {line}"])


def test_the_batch_is_shown_as_a_sum_with_the_schedules_length() -> None:
    shown = text()
    assert "32 prompts x 8 samples = 256 = 64 per update (16 x 2 x 2) x 4 updates; 2000 updates in the run" in shown
    assert "a pass of their own: a step has 4 updates" in shown


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "per engine in a step, 128 of them at once, 512 on GPUs (max_running_requests)"),
        ({"max_running_requests": 96}, "per engine in a step, 96 of them at once (max_running_requests)"),
        (
            {"actor_infer.strategy_args.strategy_name": "hf_infer"},
            "per engine in a step, 128 of them at once (max_running_requests)",
        ),
        (
            {"actor_infer.strategy_args.strategy_config.max_num_seqs": 64, "max_running_requests": 256},
            "per engine in a step, 64 of them at once (actor_infer's max_num_seqs)",
        ),
        (
            {"actor_infer.strategy_args.strategy_config.max_num_seqs": 200},
            "128 of them at once, 200 on GPUs (actor_infer's max_num_seqs)",
        ),
        (
            {"actor_infer.strategy_args.strategy_config": {"max_num_seqs": 999, "max_num_batched_tokens": 99}},
            "99 of them at once (actor_infer's max_num_batched_tokens)",
        ),
        (
            {
                "actor_infer.strategy_args": {
                    "strategy_name": "sglang",
                    "strategy_config": {"max_running_requests": 8},
                }
            },
            "8 of them at once (actor_infer's max_running_requests)",
        ),
        (
            {"actor_infer.strategy_args.strategy_config.max_num_seqs": 200, "platform": "cpu"},
            "128 of them at once (max_running_requests)",
        ),
        ({"platform": "cuda"}, "512 of them at once (max_running_requests)"),
        ({"platform": "cpu"}, "128 of them at once (max_running_requests)"),
    ],
)
def test_answers_of_an_engine_are_shown_with_how_many_run_at_once(changes: dict[str, object], line: str) -> None:
    assert line in text(changes)


def test_expert_sizes_and_packing_are_shown_with_the_workers() -> None:
    shown = text(
        {
            "actor_train.strategy_args": {
                "strategy_name": "megatron_train",
                "strategy_config": {
                    "tensor_model_parallel_size": 2,
                    "sequence_parallel": True,
                    "expert_model_parallel_size": 4,
                    "expert_tensor_parallel_size": 2,
                },
            },
            "actor_train.device_mapping": "list(range(0,8))",
            "actor_train.use_sequence_packing": True,
            "actor_infer.device_mapping": [8],
            "num_nodes": 2,
            "rollout_batch_size": 64,
        }
    )
    assert "8 workers (tensor parallel 2, expert parallel 4, expert tensor parallel 2, rows packed)" in shown


PACKED = {
    "actor_train.use_sequence_packing": True,
    "actor_train.use_dynamic_batching_in_train": True,
    "actor_train.max_tokens_per_microbatch_in_train": 100,
}


def test_the_plan_says_how_large_packs_are_and_how_many_at_most() -> None:
    """Rows are at most 44 tokens here: two of full length fit into 100."""
    by_rows = text({"actor_train.use_sequence_packing": True})
    assert "actor_train: 16 rows in training, where 32 rows of a rank are at most 2 packs; 16 rows in scor" in by_rows
    by_tokens = text(PACKED)
    assert "actor_train: up to 100 tokens in training, where 32 rows of a rank are at most 16 packs" in by_tokens
    assert "packs" not in text()


def test_the_plan_says_who_shares_prefixes_and_why_auto_does_not() -> None:
    once = "common prefixes of rows in a micro batch are computed once if the model allows it"
    assert f"actor_train: auto, {once}" in text()
    assert "actor_infer: auto" not in text()
    divided = text({"actor_train.model_args.ulysses_size": 2})
    assert "actor_train: auto; off here: model_args.ulysses_size, whose ranks divide rows" in divided
    megatron = text({"actor_train.strategy_args.strategy_name": "megatron_train"})
    assert "actor_train: auto; off here: megatron_train does not compute rows that begin alike as a tree" in megatron
    amd = text({"platform": "rocm"})
    assert "actor_train: auto; off here: prefix sharing works on NVIDIA's GPUs and on CPUs, and devices are of" in amd
    assert "prefix sharing" not in text({"actor_train.use_prefix_sharing": "off"})


def test_the_plan_asks_config_json_whether_auto_shares_prefixes() -> None:
    made = config()
    plan = build_plan(made)

    def said(model: dict[str, object]) -> str:
        return describe(made, plan, batch_rows(made, plan), models={"actor_train": model})

    assert "actor_train: auto, common prefixes of rows in a micro batch are computed once, 2.8 x" in said(
        {"model_type": "qwen2"}
    )
    name = made.actor_train.model_args.model_name_or_path
    off = f"actor_train: auto; off here: {name}, which has"
    assert f"{off} layers that carry a state" in said({"model_type": "falcon_h1"})
    assert f"{off} a soft cap" in said({"model_type": "gemma2", "attn_logit_softcapping": 50.0})


def test_the_plan_says_how_many_tokens_sharing_saves_at_full_lengths() -> None:
    """Prompts are 32 tokens at most, responses 12, groups 8: 8 x 44 tokens against 32 + 8 x 12."""
    shared: dict[str, object] = {"actor_train.use_prefix_sharing": "on"}
    assert "once, 2.8 x fewer tokens for 8 rows of 12 behind a prompt of 32" in text(shared)
    exact = text(shared | {"exact_log_probs": True})
    assert "behind a prompt of 32; attention is computed for every row (exact_log_probs)" in exact
    rows = {"actor_train.training_args.per_device_train_batch_size": 2}
    assert "once, 1.6 x fewer tokens for 2 rows of 12 behind a prompt of 32" in text(shared | rows)
    by_tokens = {"actor_train.use_dynamic_batching_in_train": True}
    by_tokens |= {"actor_train.max_tokens_per_microbatch_in_train": 100}
    assert "2.4 x fewer tokens for 5 rows" in text(shared | by_tokens), "of a prompt and six, 104 tokens"
    alone = {"actor_train.training_args.per_device_train_batch_size": 1}
    assert "once\n" in text(shared | alone), "a response without another one shares nothing"
    assert "fewer tokens" not in text(shared | {"num_return_sequences_in_group": 1})


def test_nodes_that_nothing_uses_are_one_line() -> None:
    shown = text({"num_nodes": 100_000, "num_gpus_per_node": 1_000})
    assert "node 1..99999" in shown
    assert len(shown.splitlines()) < 40
