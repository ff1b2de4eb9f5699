"""What deepspeed_train refuses, and that no rank waits for ever."""

import datetime
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from roll.distributed.strategy.deepspeed import rank as deepspeed_rank
from roll.distributed.strategy.deepspeed.train import DeepSpeedTrainStrategy
from roll.errors import StrategyError
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums
from roll.utils.network import free_port
from tests.helpers.processes import RankError, RankPool
from tests.parity.strategies.reference import rows, scale_of
from tests.parity.strategies.runs import Run, context, exported, one_update, trainer

Pools = Callable[[int], RankPool]


@dataclass(frozen=True)
class NotANumberLoss:
    needs: frozenset[str] = frozenset({"log_probs"})

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        assert outputs.log_probs is not None
        return outputs.log_probs.sum() * float("nan"), MetricSums()


def unharmed_by_not_a_number(run: Run) -> tuple[str, float]:
    """Error or empty, and how far the weights are from where they were."""
    with trainer(run) as strategy:
        before, error = exported(strategy), ""
        try:
            strategy.train_step(rows()[:2], NotANumberLoss(), scale_of(rows()), 1.0)  # type: ignore[arg-type]
        except StrategyError as raised:
            error = str(raised)
        after = exported(strategy)
        return error, max(float(abs(after[name] - before[name]).max()) for name in before)


def layout_mismatch(saving: Run, loading: Run, directory: Path) -> str:
    with trainer(saving) as strategy:
        strategy.save_checkpoint(directory)
    with trainer(loading) as strategy, pytest.raises(StrategyError) as error:
        strategy.load_checkpoint(directory)
    return str(error.value)


def poisoned(run: Run, directory: Path, bomb: bytes) -> str:
    with trainer(run) as strategy:
        one_update(strategy, run)
        strategy.save_checkpoint(directory)
        for path in (directory / "engine").glob("*_model_states.pt"):
            path.write_bytes(bomb)
        with pytest.raises(pickle.UnpicklingError) as error:
            strategy.load_checkpoint(directory)
    return str(error.value)


def alone_of_two(run: Run, port: int) -> str:
    os.environ.update(WORLD_SIZE="2", MASTER_PORT=str(port))
    deepspeed_rank.timedelta = lambda minutes: datetime.timedelta(seconds=2 * minutes)  # type: ignore[assignment]
    strategy = DeepSpeedTrainStrategy(run.config(), context(), run.plan(2))
    try:
        strategy.setup()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@dataclass(frozen=True)
class Bomb:
    """Writes a file when it is unpickled."""

    path: Path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.gate("fp32-0", "bf16-3")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_gradient_that_is_not_a_number_ends_training_and_leaves_the_weights_alone(
    stage: int, dtype: str, rank_pool: Pools, tiny_tied_model_dir: Path
) -> None:
    run = Run(tiny_tied_model_dir, stage, model={"dtype": dtype})
    error, moved = rank_pool(1).run(unharmed_by_not_a_number, run)[0]
    assert moved == 0
    assert "the gradient is not finite" in error and "the weights are untouched" in error


def test_weights_that_a_gradient_without_a_number_reached_end_training(
    rank_pool: Pools, tiny_tied_model_dir: Path
) -> None:
    """Where DeepSpeed is told not to look, it reports a norm of -1 and goes on."""
    engine = {"bf16": {"enabled": True, "check_grad_overflow": False}}
    run = Run(tiny_tied_model_dir, 2, engine=engine, model={"dtype": "bf16"})
    error, moved = rank_pool(1).run(unharmed_by_not_a_number, run)[0]
    assert "the weights are lost" in error and moved != 0


def test_another_layout_does_not_load(rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path) -> None:
    error = rank_pool(1).run(layout_mismatch, Run(tiny_tied_model_dir, 0), Run(tiny_tied_model_dir, 2), tmp_path)[0]
    assert "zero_stage 0 (now 2)" in error
    assert json.loads((tmp_path / "facts.json").read_text())["fixed"]["dp_size"] == 1


def test_a_checkpoint_that_holds_code_is_not_run(rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.pt"
    torch.save({"module": Bomb(tmp_path / "went_off")}, bomb)
    error = rank_pool(1).run(poisoned, Run(tiny_tied_model_dir, 0), tmp_path, bomb.read_bytes())[0]
    assert "Weights only load failed" in error
    assert not (tmp_path / "went_off").exists()


def test_a_rank_whose_partner_never_comes_gives_up(tiny_tied_model_dir: Path) -> None:
    """backend_timeout: 1, its minutes counted as two seconds each."""
    with RankPool(1, init_process_group=False) as pool:
        run = Run(tiny_tied_model_dir, 0, backend_timeout=1)
        error = pool.run(alone_of_two, run, free_port(), timeout_s=60)[0]
    assert "DistStoreError" in error or "imeout" in error or "timed out" in error


def test_failures_of_a_rank_are_told(rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(RankError, match="holds no state of a role that learns: facts.json"):
        rank_pool(1).run(load_nothing, Run(tiny_tied_model_dir), tmp_path)


def load_nothing(run: Run, directory: Path) -> None:
    with trainer(run) as strategy:
        strategy.load_checkpoint(directory)
