"""What one rank of a Megatron parity test runs. Module-level functions, because they travel to the ranks by name."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from megatron.core.packed_seq_params import PackedSeqParams

from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.tables.roles import ROLES
from roll.distributed.strategy.base import ALL_STATES, RankContext
from roll.distributed.strategy.megatron import inputs
from roll.distributed.strategy.megatron.score import MegatronScoreStrategy
from roll.distributed.strategy.megatron.train import MegatronTrainStrategy
from roll.errors import StrategyError
from roll.types.batch import MicroBatch
from tests.helpers.processes import DEVICE_VARIABLE
from tests.parity.strategies import routes
from tests.parity.strategies.balance import Balanced
from tests.parity.strategies.reference import (
    BETAS,
    EPSILON,
    LEARNING_RATE,
    TEMPERATURE,
    BentLoss,
    SquaredValueLoss,
    Trace,
    join,
    rows,
    scale_of,
)
from tests.parity.strategies.routes import Replayed
from tests.parity.strategies.runs import first_scores

PLAIN = BentLoss()
HEAD_FACTOR = 0.3


@dataclass(frozen=True)
class Run:
    """A training run to compare: how the same eight rows and the same model are spread."""

    model_dir: Path
    megatron: dict[str, Any] = field(default_factory=dict)
    split: tuple[int, ...] = (1, 1)  # each rank's rows are cut into micro batches in these proportions
    updates: int = 3
    max_norm: float = 0.0
    weight_decay: float = 0.0
    loss: BentLoss | SquaredValueLoss = PLAIN
    role: str = "actor_train"
    training: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    packs: bool = False
    looks: bool = True  # exports the weights after every update, else after the last one only
    vocab_size: int = 296
    total_updates: int = 100
    warmup_updates: int = 0
    optimizer_waits: bool = False
    replay: str = "disable"  # router_replay.mode
    head: str = "disabled"  # mtp_training_mode
    given: list[MicroBatch] | None = None  # rows instead of the drawn ones

    def rows(self) -> list[MicroBatch]:
        return self.given or rows(vocab_size=self.vocab_size)

    def config(self, strategy: str = "megatron_train") -> WorkerConfig:
        training = {
            "learning_rate": LEARNING_RATE,
            "adam_beta1": BETAS[0],
            "adam_beta2": BETAS[1],
            "adam_epsilon": EPSILON,
            "weight_decay": self.weight_decay,
            "lr_scheduler_type": "constant",
        }
        return WorkerConfig.model_validate(
            {
                "strategy_args": {"strategy_name": strategy, "strategy_config": self.megatron},
                "model_args": {
                    "model_name_or_path": str(self.model_dir),
                    "dtype": "fp32",
                    "disable_gradient_checkpointing": True,
                }
                | self.model,
                "training_args": training | self.training,
                "use_sequence_packing": self.packs,
                "router_replay": {"mode": self.replay},
                "mtp_training_mode": self.head,
                "mtp_loss_scaling_factor": HEAD_FACTOR,
            }
        )

    def plan(self, dp_size: int) -> TrainPlan:
        return TrainPlan(
            role=self.role,
            samples_per_step=8,
            micro_batch_size=max(1, 8 // dp_size // len(self.split)),
            accumulation=len(self.split),
            dp_size=dp_size,
            epochs=1,
            steps=self.total_updates,
            warmup_updates=self.warmup_updates,
            infer_batch_size=4,
            max_grad_norm=self.max_norm,
            optimizer_waits=self.optimizer_waits,
        )


def context(role: str = "actor_train") -> RankContext:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(os.environ.get(DEVICE_VARIABLE, "cpu"))
    return RankContext(role, rank, world_size, rank, 0, device, head=ROLES[role].head or "lm")


@contextmanager
def trainer(run: Run) -> Iterator[MegatronTrainStrategy]:
    where = context(run.role)
    strategy = MegatronTrainStrategy(run.config(), where, run.plan(1))
    strategy.setup()
    try:
        yield strategy
    finally:
        strategy.shutdown()


@contextmanager
def scorer(run: Run) -> Iterator[MegatronScoreStrategy]:
    strategy = MegatronScoreStrategy(run.config("megatron_infer"), context(run.role))
    strategy.setup()
    try:
        yield strategy
    finally:
        strategy.shutdown()


def my_micro_batches(run: Run, dp_rank: int, dp_size: int) -> list[MicroBatch]:
    """This rank's rows, unevenly cut where the proportions say so."""
    everything = run.rows()
    mine = (everything if run.replay == "disable" else routes.given(everything, run.model_dir))[dp_rank::dp_size]
    bounds = np.round(np.cumsum((0, *run.split)) / sum(run.split) * len(mine)).astype(int)
    return [join(mine[a:b]) for a, b in pairwise(bounds)]


def exported(strategy: MegatronTrainStrategy, bucket_bytes: int = 1 << 16) -> dict[str, np.ndarray]:
    weights = {}
    for bucket in strategy.export_weights(bucket_bytes):
        weights |= {name: tensor.float().cpu().numpy().copy() for name, tensor in bucket}
    return weights


def gradients(strategy: MegatronTrainStrategy) -> dict[str, np.ndarray]:
    """The summed gradients under Hugging Face names, those of adapters under peft's, as the exporter sees them in the
    weights' place."""
    adapters = strategy.model.adapters
    exporter = strategy._exporter if adapters is None else adapters._exporter
    weights = exporter._mine
    exporter._mine = {name: _gradient(p) for name, p in weights.items()}  # type: ignore[assignment]
    try:
        return {name: t.float().cpu().numpy().copy() for name, t in exporter.tensors() if t.device.type != "meta"}
    finally:
        exporter._mine = weights


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    if not parameter.requires_grad:
        return torch.zeros_like(parameter)
    return parameter.main_grad.to(parameter.dtype, copy=True)  # type: ignore[attr-defined]


@contextmanager
def gradients_before_a_step(strategy: MegatronTrainStrategy, run: Run) -> Iterator[dict[str, np.ndarray]]:
    """Those of the update inside, on rank 0."""
    step, found = strategy._updater.step, {}

    def step_and_record(role: str) -> dict[str, float]:
        found.update(gradients(strategy))
        return step(role)

    strategy._updater.step = step_and_record  # type: ignore[method-assign]
    yield found
    strategy._updater.step = step  # type: ignore[method-assign]


def one_update(strategy: MegatronTrainStrategy, run: Run) -> dict[str, float]:
    batches = my_micro_batches(run, strategy.dp_rank, strategy.dp_size)
    scale = scale_of(run.rows())
    return strategy.train_step(batches, run.loss, scale, TEMPERATURE)[1]  # type: ignore[arg-type]


def replayed(run: Run) -> Replayed:
    """What the trainer says of the rows with and without given experts, and the gradients of an update with them."""
    with trainer(run) as strategy:
        look = routes.look(strategy, run.rows(), run.model_dir)
        with gradients_before_a_step(strategy, run) as found:
            one_update(strategy, run)
        return replace(look, gradients=found)


def balanced(run: Run) -> Balanced:
    """One update with a load-balancing loss; the metric is that of all ranks."""
    with trainer(run) as strategy:
        found: dict[str, np.ndarray] = {}
        step = strategy._updater.step

        def step_and_record(role: str) -> dict[str, float]:
            found.update(gradients(strategy))
            return step(role)

        strategy._updater.step = step_and_record  # type: ignore[method-assign]
        batches = my_micro_batches(run, strategy.dp_rank, strategy.dp_size)
        scale = scale_of(run.rows())
        sums, _ = strategy.train_step(batches, run.loss, scale, TEMPERATURE)  # type: ignore[arg-type]
        total, count = strategy.all_reduce_sum([float(number) for number in sums.means["moe_aux_loss"]])
        return Balanced(found, total / count)


@dataclass(frozen=True)
class BeforeAndAfter:
    """Exported weights around one update (on rank 0), and the norm of its gradient."""

    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    grad_norm: float


def weights_around_an_update(run: Run) -> BeforeAndAfter:
    with trainer(run) as strategy:
        before = exported(strategy)
        norm = one_update(strategy, run)["grad_norm"]
        return BeforeAndAfter(before, exported(strategy), norm)


def refusal(run: Run) -> str:
    """What setup says, or an empty text."""
    strategy = MegatronTrainStrategy(run.config(), context(run.role), run.plan(1))
    try:
        strategy.setup()
        return ""
    except StrategyError as error:
        return str(error)
    finally:
        strategy.shutdown()


def train(run: Run) -> Trace:
    """The updates of `run`. Rank 0 has gradients and parameters."""
    with trainer(run) as strategy:
        trace = Trace({}, [], [], first_scores(strategy, run.role, run.rows()))
        shares = bool(run.megatron.get("use_distributed_optimizer"))
        step = strategy._updater.step

        def step_and_record(role: str) -> dict[str, float]:
            if not trace.gradients and not trace.metrics and not shares:
                trace.gradients.update(gradients(strategy))
            return step(role)

        strategy._updater.step = step_and_record  # type: ignore[method-assign]
        for update in range(run.updates):
            trace.metrics.append(one_update(strategy, run))
            if run.looks or update == run.updates - 1:
                trace.parameters.append(exported(strategy))
        return trace


def scores_and_weights(run: Run) -> tuple[list[tuple[np.ndarray, np.ndarray]], dict[str, np.ndarray]]:
    """Log-probs and entropy of each row, and the weights as they are exported."""
    with trainer(run) as strategy:
        given = run.rows()
        outputs = strategy.log_probs([join(given[:5]), join(given[5:])], TEMPERATURE, entropy=True)
        pairs = []
        for output in outputs:
            assert output.log_probs is not None and output.entropy is not None
            pairs += list(zip(output.log_probs.numpy(), output.entropy.numpy(), strict=True))
        return pairs, exported(strategy)


def scores_with_spoiled_padding(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs and entropy before and after the padding rows of embedding and head are set to large values."""
    with trainer(run) as strategy:

        def scored() -> np.ndarray:
            output = strategy.log_probs([join(run.rows())], TEMPERATURE, entropy=True)[0]
            assert output.log_probs is not None and output.entropy is not None
            return torch.stack([output.log_probs, output.entropy]).numpy()

        before = scored()
        model: Any = strategy.model.chunks[0]
        with torch.no_grad():
            for weight in (model.embedding.word_embeddings.weight, model.output_layer.weight):
                first = run.vocab_size - strategy.context.rank * len(weight)
                weight[max(first, 0) :] = 30.0
        return before, scored()


def scores_without_ends_on_the_device(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs of packed rows, and those where whoever reads the ends of rows on the device fails."""
    packed_params = inputs._packed_params

    def unreadable(*args: Any) -> PackedSeqParams:
        packed = packed_params(*args)
        nowhere = packed.cu_seqlens_q.to("meta")
        return replace(packed, cu_seqlens_q=nowhere, cu_seqlens_kv=nowhere)

    with trainer(run) as strategy:
        found = []
        for inputs._packed_params in (unreadable, packed_params):  # the second stays
            output = strategy.log_probs([join(run.rows())], TEMPERATURE)[0]
            assert output.log_probs is not None
            found.append(output.log_probs.numpy())
        return found[0], found[1]


def adam_steps(strategy: MegatronTrainStrategy) -> set[float]:
    optimizer: Any = strategy._updater.optimizer
    parts = optimizer.chained_optimizers
    return {float(state["step"]) for part in parts for state in part.optimizer.state.values()}


def resumed_steps(run: Run, directory: Path) -> set[float]:
    """Adam's step counts after two updates, a save, a load by a new strategy and one more update."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        one_update(strategy, run)
        strategy.save_checkpoint(directory)
    with trainer(run) as strategy:
        strategy.load_checkpoint(directory)
        one_update(strategy, run)
        return adam_steps(strategy)


def processes_after_saving(run: Run, directory: Path) -> int:
    """Children this rank has after a checkpoint, beyond those it had before."""
    me = psutil.Process()
    before = {child.pid for child in me.children(recursive=True)}
    with trainer(run) as strategy:
        one_update(strategy, run)
        strategy.save_checkpoint(directory)
    return len({child.pid for child in me.children(recursive=True)} - before)


@dataclass(frozen=True)
class LossOfOneBrokenRank(BentLoss):
    """Not a number on rank 1."""

    def __call__(self, outputs: Any, batch: Any, scale: Any) -> Any:
        total, sums = super().__call__(outputs, batch, scale)
        return (total * float("nan") if os.environ["RANK"] == "1" else total), sums


def broken_update(run: Run) -> tuple[str, bool]:
    """What an update with a broken gradient raises, and whether the weights are as before."""
    with trainer(run) as strategy:
        before = {name: p.detach().clone() for name, p in strategy._exporter._mine.items()}
        try:
            one_update(strategy, replace(run, loss=LossOfOneBrokenRank()))
        except StrategyError as error:
            after = strategy._exporter._mine
            return str(error), all(torch.equal(before[name], after[name]) for name in before)
        return "", False


def scores(run: Run) -> list[tuple[np.ndarray, np.ndarray]]:
    """Log-probs and entropy of each row by megatron_infer; the same micro batches as `scores_and_weights`."""
    with scorer(run) as strategy:
        given = run.rows()
        outputs = strategy.log_probs([join(given[:5]), join(given[5:])], TEMPERATURE, entropy=True)
        pairs = []
        for output in outputs:
            assert output.log_probs is not None and output.entropy is not None
            pairs += list(zip(output.log_probs.numpy(), output.entropy.numpy(), strict=True))
        return pairs


Weights = dict[str, np.ndarray]


def save_and_go_on(run: Run, directory: Path, updates: int = 2) -> tuple[Weights, Weights, float]:
    """Weights at a checkpoint after some updates, weights after one more, and its gradient norm."""
    with trainer(run) as strategy:
        for _ in range(updates):
            one_update(strategy, run)
        strategy.save_checkpoint(directory)
        saved = exported(strategy)
        norm = one_update(strategy, run)["grad_norm"]
        return saved, exported(strategy), norm


def load_and_go_on(run: Run, directory: Path) -> tuple[Weights, Weights, float]:
    """Weights as loaded, weights after one more update, and its gradient norm."""
    with trainer(run) as strategy:
        strategy.load_checkpoint(directory)
        loaded = exported(strategy)
        norm = one_update(strategy, run)["grad_norm"]
        return loaded, exported(strategy), norm


def resumed_otherwise(run: Run, other: Run, directory: Path) -> tuple[str, bool]:
    """What `other` says to a checkpoint of `run`, and whether its weights are as before."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        strategy.save_checkpoint(directory)
    with trainer(other) as strategy:
        before = exported(strategy)
        try:
            strategy.load_checkpoint(directory)
        except StrategyError as error:
            after = exported(strategy)
            return str(error), all(np.array_equal(before[name], after[name]) for name in before)
        return "", False


def left_alone(run: Run) -> None:
    """Rank 1 dies before the second update. Returns on the others when they have noticed."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        if strategy.context.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            one_update(strategy, run)
        except RuntimeError:  # gloo: connection closed by peer
            return
        raise AssertionError("an update went through without rank 1")


@dataclass(frozen=True)
class Trip:
    """A trainer that left its device and came back after an update. `held`: bytes of it that stayed while it was away;
    `parameters` and `metrics`: of the update after the trip."""

    held: int
    parameters: dict[str, np.ndarray]
    grad_norm: float


def update_after_a_trip(run: Run, takes_trip: bool) -> Trip:
    """Two updates, between them a trip to host memory: on a CPU the device is the host as well, and what leaves it
    leaves it in truth."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        held = 0
        if takes_trip:
            strategy._offload.to_host(ALL_STATES)
            held = sum(tensor.untyped_storage().nbytes() for tensor in tensors_held(strategy))
            strategy._offload.to_device(ALL_STATES)
        norm = one_update(strategy, run)["grad_norm"]
        return Trip(held, exported(strategy), norm)


def tensors_held(strategy: MegatronTrainStrategy) -> Iterator[torch.Tensor]:
    """Weights, gradients, fp32 copies and moments."""
    for chunk in strategy._chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            yield buffer.grad_data
        yield from chunk.parameters()
    yield from tensors_of_optimizer(strategy)


def tensors_of_optimizer(strategy: MegatronTrainStrategy) -> Iterator[torch.Tensor]:
    """fp32 copies, or ranges of them, and moments."""
    optimizer: Any = strategy._updater.optimizer
    for part in optimizer.chained_optimizers:
        for parameter, state in part.optimizer.state.items():
            yield from (parameter, state["exp_avg"], state["exp_avg_sq"])


def log_probs(run: Run) -> np.ndarray:
    """Of all rows."""
    with trainer(run) as strategy:
        return _log_probs(strategy, run)


def looks(run: Run) -> tuple[np.ndarray, ...]:
    """Log-probs without adapters, then those with them, before and after an update; without comes first of all."""
    with trainer(run) as strategy:
        before = _log_probs(strategy, run, base=True), _log_probs(strategy, run)
        one_update(strategy, run)
        return *before, _log_probs(strategy, run, base=True), _log_probs(strategy, run)


def _log_probs(strategy: MegatronTrainStrategy, run: Run, base: bool = False) -> np.ndarray:
    score = strategy.base_log_probs if base else strategy.log_probs
    found = score([join(run.rows())], TEMPERATURE)[0].log_probs
    assert found is not None
    return found.numpy()


def saved_as_hugging_face(run: Run, directory: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The exported weights after an update, with which the model was saved, and log-probs with the adapters off."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        strategy.save_hf_model(directory)
        return exported(strategy), _log_probs(strategy, run, base=True)


def saved_after_an_update(run: Run, directory: Path) -> dict[str, np.ndarray]:
    """The exported weights with which the model was saved."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        strategy.save_hf_model(directory)
        return exported(strategy)


def first_draws(run: Run) -> list[float]:
    """Of the two generators that dropout draws from."""
    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

    with trainer(run):
        own = float(torch.rand(()))
        tracker: Any = get_cuda_rng_tracker()
        with tracker.fork():
            return [own, float(torch.rand(()))]


def fresh_export(run: Run) -> dict[str, np.ndarray]:
    with trainer(run) as strategy:
        return exported(strategy)
