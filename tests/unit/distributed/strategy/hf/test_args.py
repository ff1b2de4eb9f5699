"""Settings of hf_infer."""

from typing import Any

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.hf.args import HfSettings, argument_problems, parse_settings


def make_role(**strategy_config: Any) -> WorkerConfig:
    return WorkerConfig.model_validate(
        {"strategy_args": {"strategy_name": "hf_infer", "strategy_config": strategy_config}}
    )


def test_keys_and_values_are_checked_and_null_is_the_default() -> None:
    role = make_role(max_model_len=None, max_num_seqs=32)
    assert list(argument_problems("actor_infer", role)) == []
    assert parse_settings(role) == HfSettings(max_model_len=None, max_num_seqs=32)
    role = make_role(max_model_length=8, max_num_seqs=0, gpu_memory_utilization=0.5)
    texts = [problem.text for problem in argument_problems("actor_infer", role)]
    assert len(texts) == 3
    assert "strategy_config.max_model_length: hf_infer has no such setting. Did you mean max_model_len?" in texts[0]
    assert "max_num_seqs: 0 must be a whole number from 1 to 1000000000" in texts[1]
    assert "It has max_model_len and max_num_seqs." in texts[2]
    (problem,) = argument_problems("actor_infer", make_role(max_num_seqs=10**40))
    assert "max_num_seqs: 1000" in problem.text and "must be a whole number from 1 to 1000000000." in problem.text
