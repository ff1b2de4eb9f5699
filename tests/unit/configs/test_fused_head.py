"""fused_kernel_options before anything starts: who may set what, and what a machine must have for it."""

from typing import Any

import pytest

from roll.configs.checks import training as fused_head
from roll.configs.checks.training import fused_head_machine_problems
from roll.run.start.preflight import choices
from tests.helpers.configs import config, problems

KEY = "actor_train.model_args.fused_kernel_options"
CCE = {f"{KEY}.impl_backend": "cut_cross_entropy"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({f"{KEY}.impl_backend": "liger"}, f"{KEY}.impl_backend: liger: its kernel multiplies the gradient of all "),
        ({f"{KEY}.logits_per_chunk": 0}, f"{KEY}.logits_per_chunk: 0 must be at least 1."),
        (
            CCE | {"actor_train.strategy_args.strategy_name": "megatron_train"},
            f"{KEY}.impl_backend: cut_cross_entropy with megatron_train, which does not compute log-probs by a "
            "kernel from hidden states. Supported by: deepspeed_train, fsdp2_train. Use one of them, or set "
            "it to torch.",
        ),
        (
            {"adv_estimator": "gae", "critic": {
                "strategy_args": {"strategy_name": "deepspeed_train"}, "device_mapping": [4, 5],
                "training_args": {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2},
                "model_args": {"fused_kernel_options": {"logits_per_chunk": 5}},
            }},
            "critic.model_args.fused_kernel_options: critic computes no log-probs, and has no use for it. Remove it.",
        ),
    ],
    ids=["liger", "zero", "megatron", "critic"],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], said: str) -> None:
    found = problems(changes)
    assert len(found) == 1 and said in found[0], found


def test_every_trainer_takes_the_number_of_logits() -> None:
    for name in ("deepspeed_train", "fsdp2_train", "megatron_train"):
        assert problems({f"{KEY}.logits_per_chunk": 1000, "actor_train.strategy_args.strategy_name": name}) == []


def test_a_package_or_a_gpu_that_is_missing_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(CCE) == []
    choice = next(choice for choice in choices(config(CCE)) if choice.role.learns)
    monkeypatch.setattr(fused_head, "is_installed", lambda module: False)
    monkeypatch.setattr(fused_head, "on_gpus_here", lambda: False)
    assert [problem.text for problem in fused_head_machine_problems(choice)] == [
        f"{KEY}.impl_backend: cut_cross_entropy needs the package cut_cross_entropy, which is not installed. Install "
        "it: pip install cut-cross-entropy",
        f"{KEY}.impl_backend: cut_cross_entropy runs on GPUs only, and this machine has none. Use torch.",
    ]
    assert not list(fused_head_machine_problems(next(c for c in choices(config()) if c.role.learns)))
