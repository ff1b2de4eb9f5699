"""`fsdp2_train`: weights, gradients and optimizer spread over data-parallel ranks by torch's fully_shard."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch.distributed.fsdp import FSDPModule

from roll.algorithms.loss import Loss
from roll.algorithms.moe_aux_loss import with_balance
from roll.configs.plan.run_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext, State, TrainStrategy
from roll.distributed.strategy.data_parallel import RankGroups, RowShare, all_reduce, evened_out
from roll.distributed.strategy.fsdp2 import checkpoint
from roll.distributed.strategy.fsdp2.meshes import whole_weight
from roll.distributed.strategy.fsdp2.rank import Fsdp2Rank
from roll.distributed.strategy.fsdp2.update import Updater
from roll.distributed.strategy.model_score import ModelScoreStrategy
from roll.distributed.strategy.optimizer import go_on_after
from roll.distributed.strategy.random_state import draw_apart
from roll.distributed.strategy.saved_facts import SavedFacts, required_facts
from roll.distributed.weights.bucket import WeightBucket, fill_buckets
from roll.errors import StrategyError
from roll.models.loading import DTYPES, write_hf_model
from roll.models.sequence_ranks import SequenceRanks
from roll.types.batch import LossScale, MicroBatch
from roll.types.metrics import MetricSums


class Fsdp2TrainStrategy(ModelScoreStrategy, TrainStrategy):
    """Policy, critic or reward model (context.head) under AdamW; fp32, or bf16 with fp32 master weights.

    The shards are the master weights: in bf16 they are cast on their way to the ranks that compute, and gradients are
    summed in fp32 (reduce_dtype). FSDP2 averages gradients over the ranks with different rows; the loss is multiplied
    by their number, so that the gradient of the update is the sum of what all micro batches of all ranks returned.
    """

    def __init__(self, role: WorkerConfig, context: RankContext, plan: TrainPlan):
        self.role, self.context, self.plan = role, context, plan
        share = RowShare.of(role, context)
        self.dp_rank, self.dp_size = share.rank, share.size
        self.rank = Fsdp2Rank(role, context)
        self._updater: Updater | None = None

    def setup(self) -> None:
        self.rank.start()
        self._groups = RankGroups.made(self.role, self.context)
        self._model = self.rank.load_model(torch.float32, adapts=True)
        self._check_balance()
        self._updater = Updater(self.rank, self.role.training_args, self.plan)
        with self.rank.weights_at_work():
            pass  # they wait where they belong
        self._prepare()
        draw_apart(self.context.seed, self.context.rank // self.rank.settings.tensor_parallel_size)

    @property
    def updater(self) -> Updater:
        assert self._updater is not None, "setup() comes first"
        return self._updater

    def train_step(
        self, micro_batches: Sequence[MicroBatch], loss: Loss, scale: LossScale, temperature: float
    ) -> tuple[MetricSums, dict[str, float]]:
        if not micro_batches:
            raise ValueError("an update needs at least one micro batch on every rank")
        module, sums, ranks = self.model.module, MetricSums(), self.rank.mesh.data.size()
        loss = with_balance(loss, self.role.model_args.moe_aux_loss_coef, micro_batches, self.all_reduce_sum)
        assert isinstance(module, FSDPModule)
        with self.rank.weights_at_work():
            for i, micro_batch in enumerate(micro_batches):
                # Shards of gradients add up on each rank; replicas exchange them once.
                module.set_requires_all_reduce(i == len(micro_batches) - 1)
                batch = micro_batch.to(self.context.device)
                total, metrics = loss(self._outputs(module, batch, loss, temperature), batch, scale)
                (total * ranks if ranks > 1 else total).backward()
                sums.merge([metrics])
            self.rank.complete_gradients()
            facts = self.updater.step(self.context.role)
        return sums.to_floats(), facts

    @property
    def sequence_ranks(self) -> SequenceRanks | None:
        return self._groups.sequence

    def _evened_out(self, micro_batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        return evened_out(micro_batches, self.context)

    def _ready_to_score(self) -> AbstractContextManager[None]:
        return self.rank.weights_at_work()

    @property
    def exports_weights(self) -> bool:
        return self.context.rank == 0

    def export_weights(
        self, bucket_bytes: int, to: Collection[int] = (), whole: bool = True, merged: bool = True
    ) -> Iterator[WeightBucket]:
        """Exports weights in model_args.dtype. Every rank gathers every weight that is sent, one at a time."""
        is_wanted = self.exports_weights or self.context.rank in to
        dtype = DTYPES[self.role.model_args.dtype]
        with self.rank.weights_at_work():
            shards, exports = self.rank.shards(), self._exports(whole, merged)
            shapes = (
                (name, torch.empty(shards[e.weight].shape, dtype=dtype, device="meta")) for name, e in exports.items()
            )
            for bucket in fill_buckets(shapes, bucket_bytes):
                weights = []
                for name, _ in bucket:
                    export = exports[name]
                    # Cast before it travels, unless an adapter is to be added in fp32.
                    tensors = {
                        n: whole_weight(shards[n], dtype if export.adapter is None else shards[n].dtype)
                        for n in export.parameters
                    }
                    value = export.value(tensors.__getitem__, dtype) if is_wanted else None
                    if (
                        self.rank.settings.param_offload
                        and self.rank.mesh.shard_group.size() == 1
                        and value is not None
                    ):
                        value = value.clone()  # the shard itself, which is about to leave
                    weights += [(name, value)] if value is not None else []
                yield self.model.in_checkpoint_form(weights)

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        return all_reduce(values, self.context, group=self._groups.data)

    def save_checkpoint(self, directory: Path) -> None:
        with self.rank.weights_at_work():
            checkpoint.save(directory, self.rank, self.updater, self._facts)

    def load_checkpoint(self, directory: Path) -> None:
        if wrong := SavedFacts.read(directory).disagreements(self._facts):
            raise StrategyError(f"{directory} was saved with {', '.join(wrong)}. Resume with the same, or start over.")
        with self.rank.weights_at_work():
            checkpoint.load(directory, self.rank, self.updater)
            self.rank.forget_frozen()

    def begin_schedule(self) -> None:
        go_on_after(self.updater.schedule, 0)

    @property
    def _facts(self) -> dict[str, object]:
        return required_facts(self.role, self.dp_size)

    def save_hf_model(self, directory: Path) -> None:
        """config.json, safetensors and the start's other files."""
        weights, trained = self.weights_on_host(), {}
        if self.model.adapters is not None:
            with self.rank.weights_at_work():
                for name, shard in self.updater.trained.items():
                    trained[self.model.hf_names[name]] = whole_weight(shard, shard.dtype).to("cpu", copy=True)
        if self.exports_weights:
            write_hf_model(directory, self.model, self.role.model_args, self.context.head, weights, trained)
        all_reduce([0.0], self.context)  # nobody goes on before the files are there

    def offload_states(self, states: frozenset[State]) -> None:
        """Moves states to host memory. On a CPU everything is there already. Gradients do not exist between two
        updates."""
        if self.context.device.type == "cpu":
            return
        if State.WEIGHTS in states:
            self.rank.offload_weights()
        if State.OPTIMIZER in states:
            self.updater.offload()
        self.rank.platform.empty_cache()

    def load_states(self, states: frozenset[State]) -> None:
        if self.context.device.type == "cpu":
            return
        if State.WEIGHTS in states:
            self.rank.load_weights()
        if State.OPTIMIZER in states:
            self.updater.load()

    def shutdown(self) -> None:
        self._updater = None
        self.rank.stop()
        self._model = None
