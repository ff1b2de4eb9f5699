"""Settings of hf_infer."""

from typing import Any

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.tables.roles import ROLES
from roll.distributed.strategy.hf.args import HfSettings, problems


def make_role(**strategy_config: Any) -> WorkerConfig:
    return WorkerConfig.model_validate(
        {"strategy_args": {"strategy_name": "hf_infer", "strategy_config": strategy_config}}
    )


def said(role: WorkerConfig) -> list[str]:
    return [problem.text for problem in problems(Choice(ROLES["actor_infer"], role))]


def test_keys_and_values_are_checked_and_null_is_the_default() -> None:
    role = make_role(max_model_len=None, max_num_seqs=32)
    assert HfSettings.model_validate({"max_num_seqs": None}).max_num_seqs == 256
    assert said(role) == []
    assert HfSettings.model_validate(role.strategy_config) == HfSettings(max_num_seqs=32)
    small, unknown, other = said(make_role(max_model_length=8, max_num_seqs=0, gpu_memory_utilization=0.5))
    assert "strategy_config.max_num_seqs: 0 must be greater than or equal to 1" in small
    assert "max_model_length: unknown key (value 8). Did you mean max_model_len?" in unknown
    assert "Known keys here: max_model_len, max_num_seqs" in other
    assert "must be less than or equal to 1000000000" in said(make_role(max_num_seqs=10**40))[0]
