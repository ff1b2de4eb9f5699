"""Scoring with a Hugging Face model in torch: what all strategies but Megatron's share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from roll.algorithms.distillation import Distillation
from roll.algorithms.loss import Loss
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext, ScoreStrategy, TrainStrategy
from roll.distributed.weights.bucket import WeightBucket, fill_buckets, with_partners
from roll.errors import PictureError, StrategyError
from roll.features.prefix_sharing.checks import obstacles
from roll.models.exact.attention import exact_refusal
from roll.models.exact.check import check_exact, make_exact
from roll.models.exact.rows import ExactRows
from roll.models.execution import ActivationOffload, compile_model
from roll.models.exports import Exported
from roll.models.hf import SequenceModel, TokenLogProbModel, TokenValueModel
from roll.models.loading import DTYPES, LoadedModel
from roll.models.routers import RouterReplay, check_routers
from roll.models.sequences.attention import refusal, set_text_attention
from roll.models.sequences.check import check_packs, check_trees, of_all_ranks, tree_refusal
from roll.models.sequences.layout import Padded, RowLayout, computed
from roll.models.sequences.pack import Pack
from roll.models.sequences.packed_attention import use_packed_attention, uses_kernel
from roll.models.sequences.ranks import SequenceRanks
from roll.models.sequences.tree import Tree, tree_or_pack
from roll.models.teacher_targets import StudentOutputs, TeacherHead, targets_of
from roll.models.vision.inputs import PictureInputs
from roll.platforms.table import platform_of
from roll.types.batch import MicroBatch, TokenOutputs
from roll.types.forest import OF_EXACT_PASSES, ON_CPUS, ON_GPUS, CallCosts, SharedWork, forest_of
from roll.types.media import Media

logger = logging.getLogger(__name__)


class ModelScoreStrategy(ScoreStrategy):
    """Log-probs of a policy, values of a critic, numbers of a reward model. `setup` of the subclass loads the model."""

    takes_media = True
    role: WorkerConfig
    context: RankContext
    _model: LoadedModel | None = None
    _student_outputs: StudentOutputs | None = None  # of one that learns from a teacher
    _replay: RouterReplay | None = None  # of a mixture, where experts are to be those of another pass
    _shares_prefixes = False  # rows that begin alike are a tree
    _shared_work = SharedWork()
    _activations: ActivationOffload | None = None  # where they wait in host memory

    @property
    def sequence_ranks(self) -> SequenceRanks | None:
        """Ranks that take the same rows as this one and share every sequence; None: it is alone with its rows."""
        return None

    @property
    def model(self) -> LoadedModel:
        assert self._model is not None, "setup() comes first"
        return self._model

    @property
    def _is_exact(self) -> bool:
        return self.context.exact and self.context.head == "lm"

    @property
    def shares_prefixes(self) -> bool:
        return self._shares_prefixes

    def computed_tokens(self, keys: Sequence[np.ndarray]) -> int:
        if not self._shares_prefixes:
            return super().computed_tokens(keys)
        return forest_of(keys, self._call_costs).num_tokens

    def take_shared_work(self) -> SharedWork:
        work, self._shared_work = self._shared_work, SharedWork()
        return work

    def base_log_probs(self, micro_batches: Sequence[MicroBatch], temperature: float) -> list[TokenOutputs]:
        if self.model.adapters is None:
            return super().base_log_probs(micro_batches, temperature)
        with self.model.adapters.off():
            return self.log_probs(micro_batches, temperature)

    @torch.no_grad()
    def log_probs(
        self, micro_batches: Sequence[MicroBatch], temperature: float, entropy: bool = False
    ) -> list[TokenOutputs]:
        self._check_policy()
        outputs = []
        for batch in self._batches(micro_batches):
            layout = self._layout(batch)
            self._give_routes(batch, layout)
            inputs = (batch.input_ids, batch.response_mask, temperature, entropy, layout)
            log_probs, entropies = self.model.module(*inputs)
            outputs.append(
                TokenOutputs(
                    log_probs=log_probs.cpu(),
                    entropy=None if entropies is None else entropies.cpu(),
                    routes=self._reported_routes(batch, layout),
                )
            )
        return outputs[: len(micro_batches)]

    @torch.no_grad()
    def values(self, micro_batches: Sequence[MicroBatch]) -> list[TokenOutputs]:
        self._check_critic()
        forward, outputs = self.model.module, []
        for batch in self._batches(micro_batches):
            values = forward(batch.input_ids, batch.response_mask, self._layout(batch))
            outputs.append(TokenOutputs(values=values.cpu()))
        return outputs[: len(micro_batches)]

    @torch.no_grad()
    def row_scores(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        if not isinstance(self.model.module, SequenceModel):
            raise StrategyError(f"{self.context.role} has no sequence-classification head and does not score rows")
        forward, batches = self.model.module, self._batches(micro_batches)
        outputs = [forward(batch.input_ids, batch.lengths, self._whole_rows(batch)).cpu() for batch in batches]
        return outputs[: len(micro_batches)]

    @torch.no_grad()
    def teacher_targets(self, micro_batches: Sequence[MicroBatch], distillation: Distillation) -> list[torch.Tensor]:
        self._check_policy()
        forward, targets = self.model.module, []
        for batch in self._batches(micro_batches):
            (values,) = forward(
                batch.input_ids, batch.response_mask, layout=self._layout(batch), distillation=distillation
            )
            targets.append(values.cpu())
        return targets[: len(micro_batches)]

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
        self._student_outputs = StudentOutputs.of(distillation, head, self.context.device)

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
        layout, balanced = self._layout(batch), "balance" in loss.needs
        if "values" in loss.needs:
            self._check_critic()
            outputs = forward(batch.input_ids, batch.response_mask, layout, balanced)
            values, balance = outputs if balanced else (outputs, None)
            return TokenOutputs(values=values, balance=balance)
        self._check_policy()
        self._give_routes(batch, layout)
        teacher_targets = targets_of(self._student_outputs, batch.teacher_targets)
        inputs = (batch.input_ids, batch.response_mask, temperature, "entropy" in loss.needs, layout)
        log_probs, entropy, *more = forward(*inputs, balanced, teacher_targets)
        return TokenOutputs(
            log_probs=log_probs,
            entropy=entropy,
            divergence=None if teacher_targets is None else more[0],
            balance=more[-1] if balanced else None,
        )

    def _give_routes(self, batch: MicroBatch, layout: RowLayout) -> None:
        if self._replay is not None:
            self._replay.give(None if batch.routes is None else layout.of_tokens(batch.routes))

    def _reported_routes(self, batch: MicroBatch, layout: RowLayout) -> torch.Tensor | None:
        if self._replay is None or not self.role.router_replay.tells:
            return None
        return layout.of_rows(self._replay.reported(), batch.input_ids)

    def _layout(self, batch: MicroBatch) -> RowLayout:
        """How the tokens of the batch, which is on the device, are computed: all but each row's last."""
        if self._shares_prefixes:
            rows = self._tree(batch, computed(batch.lengths))
            return ExactRows.of(rows) if self._is_exact else rows
        ids, shown = self._shown(batch)
        if self._is_exact:
            return ExactRows.of(Pack.scored(ids, batch.lengths))
        if not self.role.packs_rows:
            return Padded(ids, batch.lengths, shown)
        return replace(Pack.scored(ids, batch.lengths, self.sequence_ranks), pictures=shown)

    def _shown(self, batch: MicroBatch) -> tuple[torch.Tensor, PictureInputs | None]:
        """The ids of the batch, and its pictures; None for a model of text alone, and in runs that show none.
        StrategyError for pictures that it cannot show."""
        vision, ids, media = self.model.vision, batch.input_ids, batch.media or ((),) * len(batch)
        if vision is None or not self.context.shows_pictures:
            if any(media):
                raise StrategyError(f"{self.context.role}: these rows show pictures, and its model takes text alone")
            return ids, None
        shown = PictureInputs.of(self._decoded(media), ids.shape[1], vision, ids.device)
        return shown.cleaned(ids, vision), shown

    def _decoded(self, media: Sequence[Media]) -> Sequence[Media]:
        """The pictures with their pixels. Those of rows that were there before the run are read now, for one micro
        batch at a time. StrategyError for a picture that cannot be."""
        from roll.datasets.pictures.decode import all_decoded  # only runs that show pictures read them

        try:
            return all_decoded(media)
        except PictureError as error:
            raise StrategyError(f"{self.context.role}: {error}") from error

    def _whole_rows(self, batch: MicroBatch) -> RowLayout | None:
        """The same of all tokens; None: padded, with an attention mask, as a model that looks both ways needs it."""
        if self._shares_prefixes:
            return self._tree(batch, batch.lengths)
        ids, shown = self._shown(batch)
        if self.role.packs_rows:
            pack = replace(Pack.of(ids, batch.lengths), pictures=shown)
            return pack if self.sequence_ranks is None else pack.shared(self.sequence_ranks)
        return None if self.model.vision is None else Padded(ids, batch.lengths, shown, are_whole=True)

    def _tree(self, batch: MicroBatch, counts: torch.Tensor) -> Tree | Pack:
        routes = batch.routes if self._replay is not None else None
        layout = tree_or_pack(batch.input_ids, counts, routes, self._call_costs)
        num_tokens = int(counts.sum())
        work = layout.forest.shared_work() if isinstance(layout, Tree) else SharedWork(num_tokens, num_tokens)
        self._shared_work = self._shared_work.plus(work._replace(saved_pairs=0) if self._is_exact else work)
        return layout

    @property
    def _call_costs(self) -> CallCosts | None:
        """The costs by which rows are computed as trees; None: wherever they begin alike."""
        if self.role.use_prefix_sharing != "auto":
            return None
        on_device = ON_CPUS if self.context.device.type == "cpu" else ON_GPUS
        return OF_EXACT_PASSES if self._is_exact else on_device

    def _batches(self, micro_batches: Sequence[MicroBatch]) -> Iterator[MicroBatch]:
        """Micro batches on the device, with those that keep ranks in step. The weights are ready to score meanwhile."""
        with self._ready_to_score(), self._without_dropout():
            for batch in self._evened_out(micro_batches):
                yield batch.to(self.context.device)

    @torch.no_grad()
    def _prepare(self) -> None:
        """Makes the model take packs, keep activations in host memory, and compiles it, where the role wants that.
        Collective; comes last in `setup`."""
        if self._is_exact:
            if self.context.shows_pictures:
                raise exact_refusal("rows show pictures")
            make_exact(self.model, self.context.device)
            with self._ready_to_score(), self._without_dropout():
                check_exact(self.model, self.context.device)
        elif self.role.packs_rows:
            vision = self.model.vision if self.context.shows_pictures else None
            if vision is not None and vision.facts.looks_both_ways:
                raise refusal("rows show pictures, whose tokens attend to each other both ways")
            use_packed_attention(self.model.pretrained, self.sequence_ranks is not None)
            with self._ready_to_score(), self._without_dropout():
                check_packs(self.model, self.context.device, self.sequence_ranks)
        if self.role.shares_prefixes:
            self._share_prefixes()
        if self.role.router_replay.is_on:
            self._replay = RouterReplay(self.model.pretrained)
        if self.role.model_args.enable_activation_offload:
            self._activations = ActivationOffload(self.model.module)
        if self.role.use_torch_compile:
            args = self.role.model_args
            compile_model(
                self.model,
                keeps_products=args.recomputed == "selective",
                follows_attention=self.sequence_ranks is None and uses_kernel(DTYPES[args.dtype], self.context.device),
            )

    def _share_prefixes(self) -> None:
        """Turns on trees of rows that begin alike, on all ranks or none. StrategyError if the role must and cannot."""
        pretrained = self.model.pretrained
        attention = pretrained.config.get_text_config()._attn_implementation
        try:
            of_all_ranks(self._take_trees)
            if not self._is_exact:  # whose attention takes trees, and was checked on them
                with self._ready_to_score(), self._without_dropout():
                    check_packs(self.model, self.context.device)
                    check_trees(self.model, self.context.device)
        except Exception as error:  # of code that came with the model, too: auto ends no run
            if self.role.use_prefix_sharing == "on":
                raise
            why = str(error).partition("\n")[0]
            if self.context.rank == 0:
                logger.info("%s: use_prefix_sharing: auto is off here: %s", self.context.role, why)
            if pretrained.config.get_text_config()._attn_implementation != attention:
                set_text_attention(pretrained, attention or "eager")
        else:
            self._shares_prefixes = True

    def _take_trees(self) -> None:
        if self.context.shows_pictures:
            raise tree_refusal("rows show pictures, which trees do not hold")
        for key, why in obstacles(self.role, isinstance(self, TrainStrategy)).items():
            raise tree_refusal(f"{key}: {why}")
        if not (platform := platform_of(self.context.device)).has_tree_attention:
            raise tree_refusal(f"it runs on {platform.name}, which has no kernels for it")
        if not self._is_exact:
            use_packed_attention(self.model.pretrained, is_shared=True)

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
        """Checks the routers of a model that trains the load-balancing loss."""
        if self.role.model_args.moe_aux_loss_coef:
            check_routers(self.model.pretrained)

    def _check_policy(self) -> None:
        if not isinstance(self.model.module, TokenLogProbModel):
            raise StrategyError(f"{self.context.role} has a {self.context.head} head and gives no log-probs")

    def _check_critic(self) -> None:
        if not isinstance(self.model.module, TokenValueModel):
            raise StrategyError(f"{self.context.role} has no value head; values come from the critic role")


def empty_micro_batch() -> MicroBatch:
    """A row with nothing to score: it keeps a sharded model's forward passes in step with the other ranks'."""
    return MicroBatch(
        input_ids=torch.zeros(1, 2, dtype=torch.int64),
        lengths=torch.tensor([2]),
        response_mask=torch.zeros(1, 2, dtype=torch.bool),
        loss_weights=torch.zeros(1),
        rollout_log_probs=torch.zeros(1, 2),
    )
