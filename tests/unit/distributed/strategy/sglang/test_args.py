"""What sglang is started with, and which keys of strategy_config are refused, without importing sglang."""

from typing import Any

import pytest

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.sglang.args import argument_problems, engine_arguments, worker_environment
from tests.helpers.cases import cases


def role(num_gpus_per_worker: int = 1, **strategy_config: Any) -> WorkerConfig:
    return WorkerConfig.model_validate(
        {
            "model_args": {"model_name_or_path": "a/model", "dtype": "bf16"},
            "strategy_args": {"strategy_name": "sglang", "strategy_config": strategy_config},
            "num_gpus_per_worker": num_gpus_per_worker,
        }
    )


def problems(settings: WorkerConfig) -> list[str]:
    return [problem.text for problem in argument_problems("actor_infer", settings)]


def test_any_server_argument_passes_and_wins_over_ours() -> None:
    settings = role(2, mem_fraction_static=0.7, load_format="dummy", log_level="info")
    arguments = engine_arguments(settings, on_cpu=False, seed=5)
    assert arguments["mem_fraction_static"] == 0.7
    assert arguments["load_format"] == "dummy"
    assert arguments["log_level"] == "info"
    assert (arguments["tp_size"], arguments["dtype"], arguments["random_seed"]) == (2, "bfloat16", 5)
    assert (arguments["model_path"], arguments["device"]) == ("a/model", "cuda")
    assert arguments["enable_dsa_fused_indexer"] is False, "on gfx950 it computes with copies of the first weights"
    assert arguments["dcp_replicate_q_proj"] is False, "so does DeepSeek's attention with dcp_size"


@pytest.mark.parametrize(
    ("shares_devices", "given", "expected"),
    [(True, {}, 0.6), (True, {"mem_fraction_static": 0.8}, 0.8), (False, {}, None)],
)
def test_an_engine_on_shared_gpus_leaves_room_unless_told_otherwise(
    shares_devices: bool, given: dict[str, float], expected: float | None
) -> None:
    arguments = engine_arguments(role(1, **given), on_cpu=False, seed=3, shares_devices=shares_devices)
    assert arguments.get("mem_fraction_static") == expected
    assert "mem_fraction_static" not in engine_arguments(role(1), on_cpu=True, seed=3, shares_devices=shares_devices)


def test_sizes_agree_with_devices_and_cores() -> None:
    assert problems(role(4, tp_size=4, pp_size=1)) == problems(role(2, tp_size=2)) == []
    assert "num_gpus_per_worker is 1, but tp_size in actor_infer" in problems(role(1, tp_size=2))[0]
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in worker_environment(on_cpu=True)
    assert worker_environment(True, 2)["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"
    assert "SGLANG_USE_CPU_ENGINE" not in worker_environment(on_cpu=False)
    assert engine_arguments(role(), on_cpu=True, seed=0, most_answers=64)["max_running_requests"] == 256
    assert engine_arguments(role(), on_cpu=True, seed=0, most_answers=512)["max_running_requests"] == 512


@cases("given, largest")
def test_graphs_on_a_gpu_reach_as_many_answers_as_there_are_at_once(given: dict[str, Any], largest: int | None) -> None:
    arguments = engine_arguments(role(**given), on_cpu=False, seed=0, most_answers=1024)
    assert arguments.get("cuda_graph_max_bs_decode") == largest
    assert "cuda_graph_max_bs_decode" not in engine_arguments(role(), on_cpu=True, seed=0, most_answers=64)


@pytest.mark.parametrize(
    ("backend", "sent"), [("none", None), ("deepep", "bf16"), ("pplx", "bf16"), ("deepep_v2", None), ("mori", None)]
)
def test_what_is_sent_to_experts_has_the_bits_of_the_model(backend: str, sent: str | None) -> None:
    """SGLang's own choice for DeepEP and PPLX is fp8, unless the experts' kernels are DeepGEMM's."""
    for given in (None, "auto"):
        settings = role(moe_a2a_backend=backend, deepep_dispatcher_output_dtype=given)
        arguments = engine_arguments(settings, on_cpu=False, seed=0)
        assert arguments.get("deepep_dispatcher_output_dtype") == (sent or given)
