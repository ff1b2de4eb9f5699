"""Training runs on a few rows, as one rank of a parity or contract test makes them. Module-level, so that they travel
to the ranks by name."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from roll.algorithms.loss import SupervisedLoss
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.tables.roles import ROLES
from roll.distributed.strategy.base import RankContext, TrainStrategy
from roll.distributed.strategy.fsdp2.sharding import whole_weight
from roll.distributed.strategy.fsdp2.train import Fsdp2TrainStrategy
from roll.models.hf import LogProbHead
from roll.types.batch import MicroBatch
from tests.helpers.processes import DEVICE_VARIABLE
from tests.parity.strategies import routes, shown
from tests.parity.strategies.balance import Balanced
from tests.parity.strategies.forks import forks
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

if TYPE_CHECKING:  # FSDP2 is tried where DeepSpeed is not installed
    from roll.distributed.strategy.deepspeed.train import DeepSpeedTrainStrategy


@dataclass(frozen=True)
class Run:
    """A training run to compare: how the same eight rows are spread, and on which engine. `fsdp2`: the settings of
    fsdp2_train; None: deepspeed_train, with a ZeRO stage."""

    model_dir: Path
    stage: int = 0
    split: tuple[int, ...] = (1,)  # each rank's rows are cut into micro batches in these proportions
    updates: int = 3
    zero: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    max_norm: float = 0.0
    total_updates: int = 100
    warmup_updates: int = 0
    loss: BentLoss | SquaredValueLoss | SupervisedLoss = field(default_factory=BentLoss)
    role: str = "actor_train"
    positions_per_chunk: int | None = None
    masters: bool = False  # record the fp32 master weights instead of the exported ones
    backend_timeout: int = 30
    fsdp2: dict[str, Any] | None = None
    packs: bool = False
    shares: str = "off"  # use_prefix_sharing; unless that, the rows are those of forks.py
    compiled: bool = False
    optimizer_waits: bool = False
    replay: str = "disable"  # router_replay.mode
    sequence: int = 1  # neighbouring ranks that share every sequence
    shows: bool = False  # some rows show pictures, those of shown.py
    conversations: Path | None = None  # of which the rows are made, those of shown.py
    given: list[MicroBatch] | None = None  # rows instead of the drawn ones

    def rows(self) -> list[MicroBatch]:
        if self.given is not None:
            return self.given
        if self.conversations is not None:
            return shown.conversations(self.model_dir, self.conversations)
        if self.shows:
            return shown.rows(self.model_dir)
        return rows() if self.shares == "off" else forks()

    def config(self) -> WorkerConfig:
        zero = {"stage": self.stage} | self.zero
        if self.stage == 3:
            zero = {"stage3_param_persistence_threshold": 0} | zero
        deepspeed = {"zero_optimization": zero} | self.engine
        training = {
            "learning_rate": LEARNING_RATE,
            "adam_beta1": BETAS[0],
            "adam_beta2": BETAS[1],
            "adam_epsilon": EPSILON,
        }
        return WorkerConfig.model_validate(
            {
                "strategy_args": {"strategy_name": "deepspeed_train", "strategy_config": deepspeed}
                if self.fsdp2 is None
                else {"strategy_name": "fsdp2_train", "strategy_config": self.fsdp2},
                "model_args": {
                    "model_name_or_path": str(self.model_dir),
                    "dtype": "fp32",
                    "disable_gradient_checkpointing": True,
                    "ulysses_size": self.sequence,
                }
                | self.model,
                "training_args": training | {"lr_scheduler_type": "constant"} | self.training,
                "backend_timeout": self.backend_timeout,
                "use_sequence_packing": self.packs,
                "use_prefix_sharing": self.shares,
                "use_torch_compile": self.compiled,
                "router_replay": {"mode": self.replay},
            }
        )

    def plan(self, dp_size: int) -> TrainPlan:
        return TrainPlan(
            role=self.role,
            samples_per_step=8,
            micro_batch_size=8 // dp_size // len(self.split),
            accumulation=len(self.split),
            dp_size=dp_size,
            epochs=1,
            steps=self.total_updates,
            warmup_updates=self.warmup_updates,
            infer_batch_size=4,
            max_grad_norm=self.max_norm,
            optimizer_waits=self.optimizer_waits,
        )


def context(role: str = "actor_train", shows: bool = False) -> RankContext:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(os.environ.get(DEVICE_VARIABLE, "cpu"))
    return RankContext(role, rank, world_size, rank, 0, device, head=ROLES[role].head or "lm", shows_pictures=shows)


@contextmanager
def trainer(run: Run) -> Iterator[DeepSpeedTrainStrategy | Fsdp2TrainStrategy]:
    where = context(run.role, run.shows)
    strategy = _class_of(run)(run.config(), where, run.plan(where.world_size // run.sequence))
    strategy.setup()
    if run.positions_per_chunk is not None:
        head = strategy.model.module.head
        assert isinstance(head, LogProbHead)
        head.logits_per_chunk = run.positions_per_chunk * strategy.model.pretrained.config.vocab_size
    try:
        yield strategy
    finally:
        strategy.shutdown()


def _class_of(run: Run) -> type[DeepSpeedTrainStrategy] | type[Fsdp2TrainStrategy]:
    if run.fsdp2 is not None:
        return Fsdp2TrainStrategy
    from roll.distributed.strategy.deepspeed.train import DeepSpeedTrainStrategy

    return DeepSpeedTrainStrategy


def my_micro_batches(run: Run, dp_rank: int, dp_size: int) -> list[MicroBatch]:
    """This rank's rows in micro batches of `run.split`'s proportions."""
    everything = run.rows() if run.replay == "disable" else routes.given(run.rows(), run.model_dir)
    mine = everything[dp_rank::dp_size]
    bounds = np.round(np.cumsum((0, *run.split)) / sum(run.split) * len(mine)).astype(int)
    return [join(mine[a:b]) for a, b in itertools.pairwise(bounds)]


def exported(strategy: TrainStrategy, bucket_bytes: int = 1 << 16) -> dict[str, np.ndarray]:
    weights = {}
    for bucket in strategy.export_weights(bucket_bytes):
        weights |= {name: tensor.float().cpu().numpy().copy() for name, tensor in bucket}
    return weights


def fresh_export(run: Run) -> dict[str, np.ndarray]:
    with trainer(run) as strategy:
        return exported(strategy)


def kept_export(run: Run) -> dict[str, np.ndarray]:
    """What was exported, looked at when all of it is there."""
    with trainer(run) as strategy:
        weights = [pair for bucket in strategy.export_weights(1 << 16) for pair in bucket]
        return {name: tensor.float().cpu().numpy().copy() for name, tensor in weights}


def rotary_frequencies(run: Run) -> dict[str, np.ndarray]:
    """Buffers of rotary embeddings, in the format that the trainer keeps them in."""
    with trainer(run) as strategy:
        buffers = dict(strategy.model.pretrained.named_buffers())
        return {name: buffer.cpu().numpy() for name, buffer in buffers.items() if name.endswith("inv_freq")}


def one_update(strategy: TrainStrategy, run: Run) -> dict[str, float]:
    batches = my_micro_batches(run, strategy.dp_rank, strategy.dp_size)
    return strategy.train_step(batches, run.loss, scale_of(run.rows()), TEMPERATURE)[1]  # type: ignore[arg-type]


def train(run: Run) -> Trace:
    """The updates of `run` on this rank."""
    with trainer(run) as strategy:
        trace = Trace({}, [], [], first_scores(strategy, run.role, run.rows()))
        with gradients_before_a_step(strategy, run) as trace.gradients:
            trace.metrics.append(one_update(strategy, run))
        trace.parameters.append(masters(strategy, run) if run.masters else exported(strategy))
        for _ in range(run.updates - 1):
            trace.metrics.append(one_update(strategy, run))
            trace.parameters.append(masters(strategy, run) if run.masters else exported(strategy))
        return trace


def summed_formats(run: Run) -> set[torch.dtype]:
    """Formats of the tensors of over 64 numbers that DeepSpeed's ranks add up in an update."""
    found = set[torch.dtype]()

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
            found.update(tensor.dtype for tensor in tensors if tensor.numel() > 64)
            return real(*args, **kwargs)

        return call

    with trainer(run) as strategy:
        from deepspeed.comm import comm

        sums = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
        with ExitStack() as stack:
            for name in sums:
                stack.enter_context(mock.patch.object(comm.cdb, name, watched(getattr(comm.cdb, name))))
            one_update(strategy, run)
    return found


def first_scores(strategy: TrainStrategy, role: str, given: list[MicroBatch]) -> dict[int, np.ndarray]:
    """Log-probs, or values, of those rows that are this rank's, scored together."""
    mine = range(len(given))[strategy.dp_rank :: strategy.dp_size]
    batch = join([given[row] for row in mine])
    if role == "critic":
        found = strategy.values([batch])[0].values
    else:
        found = strategy.log_probs([batch], TEMPERATURE)[0].log_probs
    assert found is not None
    return {row: found[i, : given[row].input_ids.shape[1]].numpy() for i, row in enumerate(mine)}


def replayed(run: Run) -> Replayed:
    """What the trainer says of the rows with and without given experts, and the gradients of an update with them."""
    with trainer(run) as strategy:
        found = routes.look(strategy, run.rows(), run.model_dir)
        with gradients_before_a_step(strategy, run) as gradients:
            one_update(strategy, run)
        assert_shared(strategy)
        return replace(found, gradients=gradients)


def balanced(run: Run) -> Balanced:
    """One update with a load-balancing loss; the metric is that of all ranks."""
    with trainer(run) as strategy, gradients_before_a_step(strategy, run) as gradients:
        batches = my_micro_batches(run, strategy.dp_rank, strategy.dp_size)
        sums, _ = strategy.train_step(batches, run.loss, scale_of(run.rows()), TEMPERATURE)  # type: ignore[arg-type]
        total, count = strategy.all_reduce_sum([float(number) for number in sums.means["moe_aux_loss"]])
        return Balanced(gradients, total / count)


def assert_shared(strategy: TrainStrategy) -> None:
    """Of a strategy that is to share beginnings: it did, in the updates since the last call."""
    if strategy.shares_prefixes:
        work = strategy.take_shared_work()
        assert work.tokens < 0.75 * work.row_tokens and work.saved_pairs > 0


@contextmanager
def gradients_before_a_step(
    strategy: DeepSpeedTrainStrategy | Fsdp2TrainStrategy, run: Run
) -> Iterator[dict[str, np.ndarray]]:
    """Those of the update inside, by Hugging Face name."""
    owner: Any = strategy.updater if isinstance(strategy, Fsdp2TrainStrategy) else strategy
    name = "step" if isinstance(strategy, Fsdp2TrainStrategy) else "_step"
    step, found = getattr(owner, name), {}

    def record_and_step(*arguments: Any) -> Any:
        for own_name, parameter in strategy.model.module.named_parameters():
            gradient = parameter.grad if run.fsdp2 is not None or run.stage == 0 else _full_gradient(parameter)
            if gradient is not None:
                found[strategy.model.hf_names[own_name]] = whole(gradient)
        return step(*arguments)

    setattr(owner, name, record_and_step)
    yield found
    setattr(owner, name, step)


def _full_gradient(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """Under ZeRO from stage 1 on; collective."""
    from deepspeed.utils import safe_get_full_grad

    return safe_get_full_grad(parameter)


def whole(tensor: torch.Tensor) -> np.ndarray:
    full = whole_weight(tensor, tensor.dtype) if isinstance(tensor, DTensor) else tensor
    return full.detach().float().cpu().numpy().copy()


def save_after(run: Run, directory: Path) -> dict[str, np.ndarray]:
    """Saves after the updates of `run` and returns the weights after one more."""
    with trainer(run) as strategy:
        for _ in range(run.updates):
            one_update(strategy, run)
        strategy.save_checkpoint(directory)
        one_update(strategy, run)
        return exported(strategy)


def saved_both_ways(run: Run, directory: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Saves the model in `model` and a checkpoint in `checkpoint` after the updates of `run`, and returns the weights
    exported there, and those after one more update."""
    with trainer(run) as strategy:
        for _ in range(run.updates):
            one_update(strategy, run)
        strategy.save_hf_model(directory / "model")
        strategy.save_checkpoint(directory / "checkpoint")
        then = exported(strategy)
        one_update(strategy, run)
        return then, exported(strategy)


def go_on(run: Run, directory: Path) -> Trace:
    """The updates of `run` after a checkpoint."""
    with trainer(run) as strategy:
        strategy.load_checkpoint(directory)
        trace = Trace({}, [], [])
        for _ in range(run.updates):
            trace.metrics.append(one_update(strategy, run))
            trace.parameters.append(exported(strategy))
        return trace


def settings_after_loading(run: Run, directory: Path) -> list[Any]:
    """Of the optimizer that steps, and the norm to which gradients are clipped."""
    with trainer(run) as strategy:
        strategy.load_checkpoint(directory)
        assert not isinstance(strategy, Fsdp2TrainStrategy)
        engine: Any = strategy.engine
        names = ("lr", "initial_lr", "weight_decay", "betas", "eps")
        return [*([g[n] for n in names] for g in engine.basic_optimizer.param_groups), engine.optimizer.clip_grad]


def masters(strategy: DeepSpeedTrainStrategy | Fsdp2TrainStrategy, run: Run) -> dict[str, np.ndarray]:
    names = strategy.model.hf_names
    if isinstance(strategy, Fsdp2TrainStrategy):
        return {names[name]: whole(shard) for name, shard in strategy.rank.shards().items()}
    from deepspeed.utils import safe_get_full_fp32_param

    parameters = dict(strategy.model.module.named_parameters())
    if run.stage == 0:
        assert strategy.engine.basic_optimizer is not None
        flat = [master for group in strategy.engine.basic_optimizer.param_groups for master in group["params"]]
        in_groups = sorted(parameters, key=lambda name: parameters[name].dim() <= 1)  # matrices are the first group
        full = dict(zip(in_groups, flat, strict=True))
    else:
        full = {name: safe_get_full_fp32_param(parameter) for name, parameter in parameters.items()}
    return {names[name]: tensor.detach().numpy().copy() for name, tensor in full.items() if tensor is not None}


def saved_as_hugging_face(run: Run, directory: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Master weights and exported ones after an update, with which the model was saved."""
    with trainer(run) as strategy:
        one_update(strategy, run)
        strategy.save_hf_model(directory)
        return masters(strategy, run), exported(strategy)
