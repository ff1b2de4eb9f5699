"""`exact_log_probs` in a plan: what breaks it is refused by its key, with a way out."""

import re
from typing import Any

import pytest

from tests.helpers.configs import problems

EXACT: dict[str, Any] = {
    "exact_log_probs": True,
    "actor_train.strategy_args.strategy_name": "fsdp2_train",
    "actor_infer.strategy_args.strategy_name": "hf_infer",
}


def said(changes: dict[str, Any]) -> list[str]:
    return [text for text in problems(EXACT | changes) if "exact_log_probs" in text]


def test_it_works_with_both_trainers() -> None:
    assert said({}) == []
    assert said({"actor_train.strategy_args.strategy_name": "deepspeed_train"}) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"actor_infer.strategy_args.strategy_name": "vllm"},
            "vllm has kernels of its own. Use hf_infer",
        ),
        ({"actor_train.strategy_args.strategy_name": "megatron_train"}, "megatron_train has kernels of its own"),
        ({"actor_train.model_args.dtype": "fp16", "actor_infer.model_args.dtype": "fp16"}, "fp16 is not tested"),
        ({"actor_infer.model_args.dtype": "fp32"}, "give different numbers. Set them to the same"),
        ({"actor_train.model_args.lora_target": "all-linear"}, "lora_target: all-linear is added in the trainer"),
        ({"actor_train.model_args.ulysses_size": 2}, "ulysses_size: 2 divides sequences"),
        (
            {"actor_train.strategy_args.strategy_config": {"tensor_parallel_size": 2}},
            "tensor_parallel_size: 2 adds up products in parts",
        ),
        ({"actor_train.use_torch_compile": True}, "use_torch_compile: True uses different kernels"),
        ({"actor_train.use_prefix_sharing": "auto"}, "use_prefix_sharing: auto adds up attention along the tree"),
        (
            {"actor_train.model_args.fused_kernel_options.impl_backend": "cut_cross_entropy"},
            "cut_cross_entropy has kernels of its own. Set it to torch",
        ),
        ({"actor_infer.model_args.attn_implementation": "fa2"}, "fa2 is not the exact attention"),
        ({"kv_on_update": "keep"}, "kv_on_update: keep samples over keys and values of old weights"),
    ],
)
def test_what_breaks_it_is_refused(changes: dict[str, Any], message: str) -> None:
    texts = said(changes)
    assert any(re.search(message, text) for text in texts), texts
    assert all("false" in text for text in texts)
