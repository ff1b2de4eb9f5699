"""What only a GPU can show. Skips without one; docs/gpu_validation.md says which of it has ever run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run, sort_data, start_run  # noqa: F401  (fixtures)

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

ONE_GPU = ("num_gpus_per_node=1", "actor_train.device_mapping=[0]", "actor_infer.device_mapping=[0]")


def test_tiny_sort_learns_with_every_role_on_one_gpu(sort_data: Path, start_run: Callable[..., Run]):  # noqa: F811
    """Roles take turns on the device, so states are offloaded and brought back every step, and weights go by CUDA IPC.
    The log-probs of engine and trainer agree after every update (fp32, TF32 off by default in torch)."""
    run = start_run(sort_data, "tiny_sort", *ONE_GPU, "max_steps=24", "eval_steps=24", "save_steps=-1")
    assert run.wait() == 0, run.text
    assert run.metrics[24]["val/reward_mean"] > 0.7
    assert max(row["train_infer/log_prob_diff_max"] for step, row in run.metrics.items() if step) < 1e-4


def test_vllm_learns_on_the_same_gpu_as_its_trainer(sort_data: Path, start_run: Callable[..., Run]):  # noqa: F811
    pytest.importorskip("vllm", reason="vllm is not installed")
    run = start_run(
        sort_data,
        "tiny_sort_vllm",
        *ONE_GPU,
        "actor_train.training_args.gradient_accumulation_steps=4",
        "actor_infer.strategy_args.strategy_config.gpu_memory_utilization=0.2",
        "max_steps=12",
        "eval_steps=12",
        "save_steps=-1",
    )
    assert run.wait() == 0, run.text
    assert run.metrics[12]["val/reward_mean"] > run.metrics[0]["val/reward_mean"]


def test_offloading_a_trainer_frees_device_memory_and_loading_restores_it(tiny_model_dir: Path):
    """At least nine tenths of what the trainer holds leaves the device, and the exported weights are the same
    afterwards."""
    from tests.helpers.processes import run_ranks

    before, offloaded, equal = run_ranks(_offload_and_load, 1, tiny_model_dir)[0]
    assert offloaded < 0.1 * before
    assert equal


def held_bytes() -> int:
    """Of tensors. Without the workspace of cuBLAS, which lies in torch's memory from the first product on: 32 MiB, many
    times the tiny model."""
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def _offload_and_load(model_dir: Path) -> tuple[int, int, bool]:
    from roll.distributed.strategy.base import ALL_STATES, RankContext
    from roll.distributed.strategy.deepspeed import DeepSpeedTrainStrategy
    from tests.parity.strategies.runs import Run as TrainingRun

    run = TrainingRun(model_dir, stage=2)
    context = RankContext("actor_train", 0, 1, 0, 0, torch.device("cuda:0"))
    strategy = DeepSpeedTrainStrategy(run.config(), context, run.plan(1))
    strategy.setup()

    def weights() -> dict[str, Any]:
        return {name: tensor.clone().cpu() for bucket in strategy.export_weights(1 << 20) for name, tensor in bucket}

    expected, before = weights(), held_bytes()
    strategy.offload_states(ALL_STATES)
    offloaded = held_bytes()
    strategy.load_states(ALL_STATES)
    restored = weights()
    return before, offloaded, all(torch.equal(expected[name], restored[name]) for name in expected)


@pytest.mark.parametrize("stage", [0, 3])
def test_offloading_a_scorer_frees_device_memory_and_loading_restores_its_scores(stage: int, tiny_model_dir: Path):
    from tests.helpers.processes import run_ranks

    before, offloaded, equal = run_ranks(_scorer_away_and_back, 1, tiny_model_dir, stage)[0]
    assert offloaded < 0.1 * before
    assert equal


def _scorer_away_and_back(model_dir: Path, stage: int) -> tuple[int, int, bool]:
    from roll.distributed.strategy.base import ALL_STATES, RankContext
    from roll.distributed.strategy.deepspeed_infer import DeepSpeedInferStrategy
    from tests.parity.strategies.reference import join, rows
    from tests.parity.strategies.runs import Run as TrainingRun

    context = RankContext("reference", 0, 1, 0, 0, torch.device("cuda:0"))
    strategy = DeepSpeedInferStrategy(TrainingRun(model_dir, stage).config(), context)
    strategy.setup()

    def log_probs() -> Any:
        found = strategy.log_probs([join(rows())], 1.0)[0].log_probs
        assert found is not None
        return found

    expected, before = log_probs(), held_bytes()
    strategy.offload_states(ALL_STATES)
    offloaded = held_bytes()
    strategy.load_states(ALL_STATES)
    return before, offloaded, torch.equal(expected, log_probs())
