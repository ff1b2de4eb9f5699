import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.megatron import parallel_problems

AT = "reference.strategy_args.strategy_config.expert_model_parallel_size"


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (2.5, "2.5"), ("two", "'two'"), ("y" * 500, "'" + "y" * 76 + "...")]
)
def test_a_size_that_is_no_whole_number_is_shown_short(value: object, shown: str) -> None:
    strategy = {"strategy_name": "megatron_infer", "strategy_config": {"expert_model_parallel_size": value}}
    worker = WorkerConfig.model_validate({"strategy_args": strategy, "device_mapping": "[0]"})
    (problem,) = parallel_problems("reference", worker)
    assert problem.text == f"{AT}: {shown} must be a whole number from 1 on."
