from pathlib import Path
from typing import Any

import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.megatron import HEAD_FACT
from roll.configs.strategies.table import required_facts
from roll.distributed.strategy.saved_facts import SavedFacts
from roll.errors import StrategyError


def role(strategy: str, config: dict[str, Any], **model: Any) -> WorkerConfig:
    return WorkerConfig.model_validate(
        {"strategy_args": {"strategy_name": strategy, "strategy_config": config}, "model_args": model}
    )


def test_deepspeed_is_tied_to_ranks_stage_and_dtype() -> None:
    facts = required_facts(role("deepspeed_train", {"zero_optimization": {"stage": 2}}, dtype="fp32"), 4)
    assert facts == {
        "strategy_name": "deepspeed_train",
        "freeze_module_prefix": None,
        "lora": None,
        "optim": "adamw_torch",
        "dtype": "fp32",
        "dp_size": 4,
        "zero_stage": 2,
    }


def test_megatron_is_tied_to_no_sizes_and_with_shared_states_neither_to_dtype_nor_to_experts() -> None:
    sizes = {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4}
    shared = {
        "strategy_name": "megatron_train",
        "freeze_module_prefix": None,
        "lora": None,
        "optim": "adamw_torch",
        "use_distributed_optimizer": True,
        HEAD_FACT: False,
    }
    assert required_facts(role("megatron_train", sizes | {"use_distributed_optimizer": True}), 1) == shared
    assert required_facts(role("megatron_train", sizes), 1) == shared | {
        "use_distributed_optimizer": False,
        "expert parallel": True,
        "dtype": "bf16",
    }


def test_facts_survive_their_file_and_differences_are_told(tmp_path: Path) -> None:
    SavedFacts({"zero_stage": 1, "dtype": "fp32"}, {"tensor": 2}).write(tmp_path)
    saved = SavedFacts.read(tmp_path)
    assert saved == SavedFacts({"zero_stage": 1, "dtype": "fp32"}, {"tensor": 2})
    assert saved.disagreements({"zero_stage": 2, "dtype": "fp32", "strategy_name": "x"}) == ["zero_stage 1 (now 2)"]


@pytest.mark.parametrize("text", [None, "[1]", "{"])
def test_facts_that_are_not_there_or_no_facts_are_told(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "facts.json").write_text(text)
    with pytest.raises(StrategyError, match="holds no state of a role that learns: facts.json"):
        SavedFacts.read(tmp_path)
