"""Scoring with a Hugging Face model in torch: what all strategies but Megatron's share."""

import sys
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from roll.algorithms.distillation import Distillation
from roll.algorithms.loss import Loss
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.tables.features import TARGETS
from roll.distributed.strategy.base import RankContext, ScoreStrategy, TrainStrategy
from roll.distributed.strategy.data_parallel import RankGroups, all_reduce
from roll.distributed.weights.bucket import WeightBucket, fill_buckets, with_partners
from roll.errors import StrategyError
from roll.models.execution import ActivationOffload, compile_model
from roll.models.exports import Exported
from roll.models.head_scores import TeacherHead
from roll.models.hf import SequenceModel, Teacher, TokenLogProbModel, TokenValueModel
from roll.models.loading import DTYPES, LoadedModel, write_hf_model
from roll.models.sequences.forward_plan import ForwardPlan, ModelRank, forward_plan
from roll.models.sequences.packed_attention import uses_kernel
from roll.models.sequences.ranks import SequenceRanks
from roll.types.batch import MicroBatch, TokenOutputs
from roll.types.metrics import SharedWork

T = TypeVar("T")


class ModelScoreStrategy(ScoreStrategy):
    """Log-probs of a policy, values of a critic, numbers of a reward model. `setup` of the subclass loads the model."""

    takes_media = True
    role: WorkerConfig
    context: RankContext
    _model: LoadedModel | None = None
    _student_outputs: Any = None  # of one that learns from a teacher
    _plan: ForwardPlan | None = None
    _activations: ActivationOffload | None = None  # where they wait in host memory

    _groups = RankGroups()  # a strategy that divides sequences makes others in `setup`

    def __init__(self, role: WorkerConfig, context: RankContext):
        self.role, self.context = role, context
        together = role.model_args.ulysses_size
        self.dp_rank, self.dp_size = context.rank // together, context.world_size // together

    @property
    def sequence_ranks(self) -> SequenceRanks | None:
        """Ranks that take the same rows as this one and share every sequence; None: it is alone with its rows."""
        return self._groups.sequence

    @property
    def model(self) -> LoadedModel:
        assert self._model is not None, "setup() comes first"
        return self._model

    @property
    def passes(self) -> ForwardPlan:
        """Plan of the forward passes; the one without features unless `_prepare` was called."""
        if self._plan is None:
            self._plan = ForwardPlan(self._model_rank())
        return self._plan

    def _model_rank(self) -> ModelRank:
        role, context = self.role, self.context
        return ModelRank(
            role=role,
            name=context.role,
            number=context.rank,
            device=context.device,
            model=self.model,
            scoring=self.scoring,
            learns=isinstance(self, TrainStrategy),
            shows_pictures=context.shows_pictures,
            is_exact=context.exact and context.head == "lm",
            sequence_ranks=self.sequence_ranks,
        )

    @property
    def shares_prefixes(self) -> bool:
        return self.passes.shares_prefixes

    def computed_tokens(self, keys: Sequence[np.ndarray]) -> int:
        return self.passes.computed_tokens(keys)

    def take_shared_work(self) -> SharedWork:
        return self.passes.take_shared_work()

    def base_log_probs(self, micro_batches: Sequence[MicroBatch], temperature: float) -> list[TokenOutputs]:
        if self.model.adapters is None:
            return super().base_log_probs(micro_batches, temperature)
        with self.model.adapters.off():
            return self.log_probs(micro_batches, temperature)

    def log_probs(
        self, micro_batches: Sequence[MicroBatch], temperature: float, entropy: bool = False
    ) -> list[TokenOutputs]:
        self._check_policy()
        module, passes = self.model.module, self.passes

        def compute(batch: MicroBatch) -> TokenOutputs:
            layout = passes.scored(batch)
            passes.begin(batch, layout)
            log_probs, entropies = module(batch.input_ids, batch.response_mask, temperature, entropy, layout)
            return TokenOutputs(
                log_probs=log_probs.cpu(),
                entropy=None if entropies is None else entropies.cpu(),
                routes=passes.routes(batch, layout),
            )

        return self._of_each(micro_batches, compute)

    def values(self, micro_batches: Sequence[MicroBatch]) -> list[TokenOutputs]:
        self._check_critic()
        module, passes = self.model.module, self.passes

        def compute(batch: MicroBatch) -> TokenOutputs:
            return TokenOutputs(values=module(batch.input_ids, batch.response_mask, passes.scored(batch)).cpu())

        return self._of_each(micro_batches, compute)

    def row_scores(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        module, passes = self.model.module, self.passes
        if not isinstance(module, SequenceModel):
            raise StrategyError(f"{self.context.role} has no sequence-classification head and does not score rows")
        return self._of_each(
            micro_batches, lambda batch: module(batch.input_ids, batch.lengths, passes.whole(batch)).cpu()
        )

    def teacher_targets(self, micro_batches: Sequence[MicroBatch], distillation: Distillation) -> list[torch.Tensor]:
        self._check_policy()
        module, passes = self.model.module, self.passes

        def compute(batch: MicroBatch) -> torch.Tensor:
            layout = passes.scored(batch)
            (values,) = module(batch.input_ids, batch.response_mask, layout=layout, distillation=distillation)
            return values.cpu()

        return self._of_each(micro_batches, compute)

    @torch.no_grad()
    def _of_each(self, micro_batches: Sequence[MicroBatch], compute: Callable[[MicroBatch], T]) -> list[T]:
        """Return what `compute` makes of each micro batch, on the device and with the weights ready to score. It is
        called for the empty ones that keep ranks in step, too."""
        with self.scoring():
            outputs = [compute(batch.to(self.context.device)) for batch in self._evened_out(micro_batches)]
        return outputs[: len(micro_batches)]

    @torch.no_grad()
    def teacher_head(self, distillation: Distillation) -> TeacherHead | None:
        self._check_policy()
        module = self.model.module
        assert isinstance(module, TokenLogProbModel)
        with self._ready_to_score():
            parts = self._on_host(module.head.lm_head)
        if self.context.rank:
            return None
        plain = {name: part[: distillation.vocab_size].float().numpy() for name, part in parts.items()}
        return TeacherHead(plain["weight"], plain.get("bias"), module.head.transform, parts["weight"].dtype)

    def set_teacher_head(self, distillation: Distillation, head: TeacherHead | None) -> None:
        self._check_policy()
        self._student_outputs = import_module(TARGETS).StudentOutputs.of(distillation, head, self.context.device)

    def _on_host(self, layer: nn.Module) -> dict[str, torch.Tensor]:
        """A layer's whole parameters. Collective."""
        return {
            name: parameter.detach().to("cpu", copy=True) for name, parameter in layer.named_parameters(recurse=False)
        }

    def _exports(self, whole: bool, merged: bool = True) -> dict[str, Exported]:
        """Weights to send to an engine, by name."""
        exports = {export.name: export for export in self.model.exports}
        if not merged:
            apart = {part.name: part for export in exports.values() for part in export.apart()}
            return {name: export.bare() for name, export in exports.items()} | apart if whole else apart
        if whole:
            return exports
        trained = {name for name, parameter in self.model.module.named_parameters() if parameter.requires_grad}
        sent = with_partners(exports, {name for name, export in exports.items() if trained & {*export.parameters}})
        return {name: export for name, export in exports.items() if name in sent}

    def _beside_weights(
        self, sent: Collection[str], whole: bool, is_wanted: bool, bucket_bytes: int
    ) -> Iterator[WeightBucket]:
        """Buckets of what engines count among the weights and nobody trains: all of it with a `whole` update, else what
        belongs to a router that is `sent`, since engines wait for all of a layer."""
        layers = {name.rpartition(".")[0] for name in sent}
        buffers = ((name, buffer, name.rpartition(".")[0]) for name, buffer in self.model.kept_buffers)
        kept = ((n, b) for n, b, owner in buffers if whole or owner in layers or f"{owner}.gate" in layers)
        for bucket in fill_buckets(kept, bucket_bytes):
            yield self.model.in_checkpoint_form(bucket) if is_wanted else []

    def _outputs(self, forward: Callable[..., Any], batch: MicroBatch, loss: Loss, temperature: float) -> TokenOutputs:
        """Compute the outputs that a loss needs, with gradient. `forward`: the model, or what an engine put around
        it."""
        with nullcontext() if self._activations is None else self._activations.saving():
            return self._kept_outputs(forward, batch, loss, temperature)

    def _kept_outputs(
        self, forward: Callable[..., Any], batch: MicroBatch, loss: Loss, temperature: float
    ) -> TokenOutputs:
        layout, balanced = self.passes.scored(batch), "balance" in loss.needs
        if "values" in loss.needs:
            self._check_critic()
            outputs = forward(batch.input_ids, batch.response_mask, layout, balanced)
            values, balance = outputs if balanced else (outputs, None)
            return TokenOutputs(values=values, balance=balance)
        self._check_policy()
        self.passes.begin(batch, layout)
        teacher_targets: Teacher | None = None
        if batch.teacher_targets is not None:
            teacher_targets = import_module(TARGETS).targets_of(self._student_outputs, batch.teacher_targets)
        inputs = (batch.input_ids, batch.response_mask, temperature, "entropy" in loss.needs, layout)
        log_probs, entropy, *more = forward(*inputs, balanced, teacher_targets)
        return TokenOutputs(
            log_probs=log_probs,
            entropy=entropy,
            divergence=None if teacher_targets is None else more[0],
            balance=more[-1] if balanced else None,
        )

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Inside, the weights are ready for passes without gradient, and adapters drop nothing out."""
        with self._ready_to_score(), self._without_dropout():
            yield

    @torch.no_grad()
    def _prepare(self) -> None:
        """Makes the model take rows as the role wants them, keep activations in host memory, and compiles it.
        Collective; comes last in `setup`."""
        self._plan = forward_plan(self._model_rank())
        if self.role.model_args.enable_activation_offload:
            self._activations = ActivationOffload(self.model.module)
        if self.role.use_torch_compile:
            args = self.role.model_args
            compile_model(
                self.model,
                keeps_products=args.recomputed == "selective",
                follows_attention=self.sequence_ranks is None and uses_kernel(DTYPES[args.dtype], self.context.device),
            )

    def _evened_out(self, micro_batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """These, and behind them the empty ones that ranks need whose forward passes must be equal in number."""
        return micro_batches

    def _ready_to_score(self) -> AbstractContextManager[None]:
        """Context of passes without gradient."""
        return nullcontext()

    def _without_dropout(self) -> AbstractContextManager[None]:
        adapters = self.model.adapters
        return nullcontext() if adapters is None else adapters.without_dropout()

    def _check_balance(self) -> None:
        """StrategyError for a model that trains the load-balancing loss, unless Hugging Face itself gives it one: then
        its routers' logits are told, and softmax makes probabilities of them."""
        if not self.role.model_args.moe_aux_loss_coef:
            return
        kind, name = type(self.model.pretrained), self.model.pretrained.name_or_path
        if not hasattr(sys.modules[kind.__module__], "load_balancing_loss_func"):
            raise StrategyError(
                f"model_args.moe_aux_loss_coef: {name}: {kind.__name__} of transformers has no load-balancing loss. "
                "Remove the key"
            )

    def _check_policy(self) -> None:
        if not isinstance(self.model.module, TokenLogProbModel):
            raise StrategyError(f"{self.context.role} has a {self.context.head} head and gives no log-probs")

    def _check_critic(self) -> None:
        if not isinstance(self.model.module, TokenValueModel):
            raise StrategyError(f"{self.context.role} has no value head; values come from the critic role")


class ModelTrainStrategy(ModelScoreStrategy, TrainStrategy):
    """Policy, critic or reward model (context.head) over data-parallel ranks, of which the first exports and saves."""

    def __init__(self, role: WorkerConfig, context: RankContext, plan: TrainPlan):
        super().__init__(role, context)
        self.plan = plan

    @property
    def exports_weights(self) -> bool:
        return self.context.rank == 0

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        return all_reduce(values, self.context, group=self._groups.data)

    @property
    def _facts(self) -> dict[str, object]:
        from roll.configs.strategies.table import required_facts  # asked when it saves or loads; may be a user's

        return required_facts(self.role, self.dp_size)

    def save_hf_model(self, directory: Path) -> None:
        """config.json, safetensors and the start's other files."""
        weights, trained = self.weights_on_host(), {} if self.model.adapters is None else self._trained_on_host()
        if self.exports_weights:
            write_hf_model(directory, self.model, self.role.model_args, self.context.head, weights, trained)
        all_reduce([0.0], self.context)  # nobody goes on before the files are there

    @abstractmethod
    def _trained_on_host(self) -> dict[str, torch.Tensor]:
        """Trained weights in host memory, by their names in `pretrained`. Collective."""
