"""`megatron_train`: tensor, pipeline, context, expert and data parallel training with megatron-core."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from roll.algorithms.distillation import Distillation
from roll.algorithms.loss import Loss
from roll.algorithms.moe_aux_loss import num_routed_tokens, tokens_of_update
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext, State, TrainStrategy
from roll.distributed.strategy.host_copies import HostCopies
from roll.distributed.strategy.megatron.score import MegatronScoreStrategy
from roll.distributed.weights.bucket import WeightBucket, fill_buckets, with_partners
from roll.errors import StrategyError
from roll.features.teachers.targets import StudentOutputs
from roll.models.head_scores import TeacherHead
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums

if TYPE_CHECKING:
    from roll.distributed.strategy.megatron.optimizer import Updater
    from roll.distributed.strategy.megatron.passes import Passes
    from roll.distributed.strategy.megatron.rank import Model
    from roll.models.megatron.weights import Exporter


class MegatronTrainStrategy(MegatronScoreStrategy, TrainStrategy):
    """Policy, critic or reward model (context.head) under AdamW; fp32, or bf16 with fp32 master weights.

    All ranks of a model-parallel group are given the same micro batches. Megatron sums gradients over ranks and micro
    batches; the loss has divided by the global counts."""

    def __init__(self, role: WorkerConfig, context: RankContext, plan: TrainPlan):
        super().__init__(role, context)
        self.plan = plan
        self._chunks: list[Any] = []  # DistributedDataParallel around the model's chunks

    def setup(self) -> None:
        self.rank.start()
        from roll.distributed.strategy.megatron.optimizer import Updater, keep_apart, wrap
        from roll.distributed.strategy.megatron.passes import Passes
        from roll.distributed.strategy.megatron.rank import load_model

        model = self._model = load_model(self.rank, trains=True)
        partly_summed = model.adapters.partly_summed if model.adapters is not None else ()
        keep_apart(model.apart)
        self._chunks = wrap(model.chunks, model.config, self.rank.settings, partly_summed, model.twins)
        self._updater: Updater = Updater(
            self._chunks, model.config, self.rank.settings, self.role.training_args, self.plan, model.head_is_apart
        )
        self._passes: Passes = Passes(
            self._chunks, model.config, model.shapes.vocab_size, self.context.device, self.role
        )
        self._exporter: Exporter = model.exporter()
        self._offload: Offload = Offload(self._chunks, self._updater.optimizer)
        self.rank.draw_apart()

    @property
    def model(self) -> Model:
        assert self._model is not None, "setup() comes first"
        return self._model

    def train_step(
        self, micro_batches: Sequence[MicroBatch], loss: Loss, scale: LossScale, temperature: float
    ) -> tuple[MetricSums, dict[str, float]]:
        if not micro_batches:
            raise ValueError("an update needs at least one micro batch on every rank")
        self.rank.check_head(values="values" in loss.needs)
        self._updater.clear()
        if self.plan.optimizer_waits:
            self._offload.to_host(frozenset({State.OPTIMIZER}))
        coef = self.role.model_args.moe_aux_loss_coef
        if coef:
            self.model.config.moe_aux_loss_coeff = coef / tokens_of_update(micro_batches, self.all_reduce_sum)
        sums = self._passes.train(micro_batches, loss, scale, temperature, self._mtp_weight(micro_batches))
        if coef:
            self._report_balance(micro_batches, sums)
        if self.plan.optimizer_waits:
            self._offload.to_device(frozenset({State.OPTIMIZER}))
        return sums, self._updater.step(self.context.role)

    def _mtp_weight(self, micro_batches: Sequence[MicroBatch]) -> float | None:
        """Collective where an MTP head is trained."""
        from roll.distributed.strategy.megatron.last_stage import mtp_weight

        if self.model.head_plan is None:
            return None
        return mtp_weight(self.role.mtp_loss_scaling_factor, micro_batches, self.all_reduce_sum)

    def _report_balance(self, micro_batches: Sequence[MicroBatch], sums: MetricSums) -> None:
        from roll.models.megatron.router import mean_balance

        tokens = sum(num_routed_tokens(batch.lengths) for batch in micro_batches)
        sums.add("moe_aux_loss", mean_balance(self.model.chunks, self.context.device), float(tokens))

    def set_teacher_head(self, distillation: Distillation, head: TeacherHead | None) -> None:
        self.rank.check_head(values=False)
        self._passes.student_outputs = StudentOutputs.of(distillation, head, self.context.device)

    def base_log_probs(self, micro_batches: Sequence[MicroBatch], temperature: float) -> list[TokenOutputs]:
        if self.model.adapters is None:
            return super().base_log_probs(micro_batches, temperature)
        self._updater.finish_gather()
        with self.model.adapters.off():
            return self.log_probs(micro_batches, temperature)

    @property
    def exports_weights(self) -> bool:
        return self.context.rank == 0

    def export_weights(
        self, bucket_bytes: int, to: Collection[int] = (), whole: bool = True, merged: bool = True
    ) -> Iterator[WeightBucket]:
        """The tensors of a bucket are valid until the next one is asked for. With other ranks than 0 in `to`, all ranks
        take part in a broadcast of every part."""
        if not merged:
            raise StrategyError("megatron_train sends adapters merged into the weights, not by themselves")
        self._updater.finish_gather()
        is_wanted = self.exports_weights or self.context.rank in to
        tensors = self._exporter.tensors(everywhere=any(rank != 0 for rank in to), only=self._sent(whole))
        for bucket in fill_buckets(tensors, bucket_bytes):
            yield bucket if is_wanted else []

    def _sent(self, whole: bool) -> set[str] | None:
        """Names of what engines get, None: all. They have no place for an MTP head."""
        from roll.models.copied_files import is_of_prediction_head

        if whole and self.model.head_plan is None:
            return None
        layers = self.model.hf.num_hidden_layers
        names = [name for name in self._exporter.hf_names if not is_of_prediction_head(name, layers)]
        return set(names) if whole else with_partners(names, self._exporter.trained)

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        return self.rank.all_reduce_data(values)

    @property
    def _facts(self) -> dict[str, object]:
        from roll.configs.strategies.table import required_facts  # asked when it saves or loads; may be a user's

        return required_facts(self.role, self.dp_size)

    def save_checkpoint(self, directory: Path) -> None:
        from roll.distributed.strategy.megatron import checkpoint

        self._updater.finish_gather()
        checkpoint.save(directory, self._chunks, self._updater, self.model.adapters, self._facts)

    def load_checkpoint(self, directory: Path) -> None:
        from roll.distributed.strategy.megatron import checkpoint

        checkpoint.load(directory, self._chunks, self._updater, self.model.adapters, self._facts)
        self._offload.forget_frozen()

    def save_hf_model(self, directory: Path) -> None:
        """config.json, safetensors and the start's other files. Memory stays at one file."""
        from roll.models.loading import ADAPTER_FOLDER
        from roll.models.megatron.hf_files import write_model

        self._updater.finish_gather()
        tensors = self._exporter.tensors()
        if self.exports_weights:
            write_model(directory, self.role.model_args, self.model.hf, self.context.head, tensors)
        else:
            for _ in tensors:
                pass
        if self.model.adapters is not None:
            self.model.adapters.save(directory / ADAPTER_FOLDER)
        torch.distributed.barrier()  # nobody goes on before the files are there

    def offload_states(self, states: frozenset[State]) -> None:
        if self.context.device.type != "cpu":
            self._updater.finish_gather()  # a pass that leaves parts of the model out leaves theirs under way
            self._offload.to_host(states)
            self.rank.platform.empty_cache()

    def load_states(self, states: frozenset[State]) -> None:
        if self.context.device.type != "cpu":
            self._offload.to_device(states)

    def shutdown(self) -> None:
        self._chunks = []
        super().shutdown()


# Moving what a trainer holds between the GPU and host memory, state by state. On a CPU nothing calls this.

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Offload:
    """`chunks` are wrapped for training. No tensor is replaced: Megatron collects gradients by hooks on parameters, and
    its buffers, weights and fp32 copies are views of each other."""

    def __init__(self, chunks: Sequence[Any], optimizer: Any):
        self._chunks, self._optimizer = chunks, optimizer
        self._copies, self._frozen = HostCopies(), HostCopies(frozen=True)
        self._dropped: list[tuple[torch.Tensor, int]] = []  # buffers of gradients and their bytes

    def to_host(self, states: frozenset[State]) -> None:
        """Gradients are dropped, the rest is kept."""
        if State.OPTIMIZER in states:
            self._copies.take(self._optimizer_tensors())
        if State.WEIGHTS in states:
            self._copies.take(weight for weight in self._weights() if weight.requires_grad)
            self._frozen.take(weight for weight in self._weights() if not weight.requires_grad)
        if State.GRADIENTS in states:
            self._drop_gradients()

    def to_device(self, states: frozenset[State]) -> None:
        """Move back what `to_host` moved. Gradients come back as zeros."""
        if State.WEIGHTS in states:
            self._copies.bring_back(weight for weight in self._weights() if weight.requires_grad)
            self._frozen.bring_back(weight for weight in self._weights() if not weight.requires_grad)
        if State.OPTIMIZER in states:
            self._copies.bring_back(self._optimizer_tensors())
        if State.GRADIENTS in states:
            for gradients, size in self._dropped:
                gradients.untyped_storage().resize_(size)
                gradients.zero_()
            self._dropped.clear()

    def forget_frozen(self) -> None:
        """A checkpoint may hold other values of what is not trained now."""
        self._frozen.forget()

    def _weights(self) -> Iterator[torch.Tensor]:
        """Weights of all chunks. Under the distributed optimizer most are views of one buffer, which is moved as a
        whole."""
        for chunk in self._chunks:
            yield from chunk.module.parameters()

    def _drop_gradients(self) -> None:
        for parameter in self._optimizer_parameters():
            parameter.grad = None
        for chunk in self._chunks:
            for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
                storage = buffer.grad_data.untyped_storage()
                if storage.nbytes():
                    self._dropped.append((buffer.grad_data, storage.nbytes()))
                    storage.resize_(0)

    def _optimizer_tensors(self) -> Iterator[torch.Tensor]:
        """Moments, and the fp32 weights where they are copies; where they are the weights themselves, or views of them,
        they go with those."""
        weights = {_identity(weight) for weight in self._weights()}
        yield from (parameter for parameter in self._optimizer_parameters() if _identity(parameter) not in weights)
        for part in self._parts():
            for state in part.optimizer.state.values():
                yield from (state[name] for name in _MOMENTS if name in state)

    def _optimizer_parameters(self) -> Iterator[torch.Tensor]:
        for part in self._parts():
            for group in part.optimizer.param_groups:
                yield from group["params"]

    def _parts(self) -> Iterator[Any]:
        """A rank may have nothing in one of the optimizers that Megatron chains."""
        yield from (part for part in self._optimizer.chained_optimizers if part.optimizer is not None)


def _identity(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
