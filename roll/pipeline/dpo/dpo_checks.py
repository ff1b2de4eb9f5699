"""What is wrong with the settings of direct preference optimization, beside its files and rows."""

from collections.abc import Iterator

from roll.configs.checks.lora import reference_problems
from roll.configs.problems import Problem
from roll.pipeline.dpo.dpo_config import DPOConfig


def dpo_problems(config: DPOConfig) -> Iterator[Problem]:
    """Everything that cannot work, whatever the machine."""
    if config.policy_is_reference:
        yield from reference_problems(config.reference, config.actor_train)
    elif config.reference is None and not config.reference_free:
        yield Problem(
            "reference is missing: the loss compares actor_train with it. Add a section reference (strategy_args, "
            "device_mapping), train adapters (actor_train.model_args.lora_target), or set reference_free: true.",
            ("reference", "reference_free"),
        )
    if config.ipo and config.label_smoothing:
        yield Problem(
            f"label_smoothing: {config.label_smoothing:g} does nothing with ipo: true, whose loss is bounded without "
            "it. Remove one.",
            ("label_smoothing", "ipo"),
        )


def dpo_warnings(config: DPOConfig) -> Iterator[str]:
    """Sections and keys without effect."""
    if config.reference is not None and config.reference_free:
        yield "reference is not started: reference_free compares with no model."
    if config.reference is not None and config.policy_is_reference:
        yield "reference is not started: with LoRA its log-probs are those of actor_train without its adapters."
    if config.policy_is_reference and config.actor_train.model_args.adapter_name_or_path is not None:
        yield (
            "actor_train.model_args.adapter_name_or_path: the reference is the model without any adapter, not the "
            "policy that the run starts from."
        )
