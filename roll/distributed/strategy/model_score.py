"""Scoring with a Hugging Face model in torch: what all strategies but Megatron's share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from roll.algorithms.distillation import Distillation
from roll.algorithms.loss import Loss
from roll.configs.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext, ScoreStrategy
from roll.distributed.weights.together import with_partners
from roll.errors import StrategyError
from roll.models.activation_offload import ActivationOffload
from roll.models.compiled import compile_model
from roll.models.hf import SequenceModel, TokenLogProbModel, TokenValueModel
from roll.models.lessons import Study, TeacherHead, lesson_of
from roll.models.loading import LoadedModel
from roll.models.lora import Exported
from roll.models.pack_check import check_packs
from roll.models.packed_attention import use_packed_attention
from roll.models.router_balance import check_routers
from roll.models.router_replay import RouterReplay, of_rows, of_tokens
from roll.models.sequence_ranks import SequenceRanks
from roll.types.batch import MicroBatch, TokenOutputs


class ModelScoreStrategy(ScoreStrategy):
    """Log-probs of a policy, values of a critic, numbers of a reward model. `setup` of the subclass loads the model."""

    role: WorkerConfig
    context: RankContext
    _model: LoadedModel | None = None
    _study: Study | None = None  # of one that learns from a teacher
    _replay: RouterReplay | None = None  # of a mixture, where experts are to be those of another pass
    _activations: ActivationOffload | None = None  # where they wait in host memory

    @property
    def sequence_ranks(self) -> SequenceRanks | None:
        """Those that take the same rows as this one and share every sequence; None: it is alone with its rows."""
        return None

    @property
    def model(self) -> LoadedModel:
        assert self._model is not None, "setup() comes first"
        return self._model

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
            log_probs, entropies = self._token_scores(self.model.module, batch, temperature, entropy)
            outputs.append(
                TokenOutputs(
                    log_probs=log_probs.cpu(),
                    entropy=None if entropies is None else entropies.cpu(),
                    routes=self._told_routes(batch),
                )
            )
        return outputs[: len(micro_batches)]

    @torch.no_grad()
    def values(self, micro_batches: Sequence[MicroBatch]) -> list[TokenOutputs]:
        self._check_critic()
        batches = self._batches(micro_batches)
        outputs = [TokenOutputs(values=self._token_values(self.model.module, batch).cpu()) for batch in batches]
        return outputs[: len(micro_batches)]

    @torch.no_grad()
    def row_scores(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        if not isinstance(self.model.module, SequenceModel):
            raise StrategyError(f"{self.context.role} has no sequence-classification head and gives rows no numbers")
        forward, packs, ranks = self.model.module, self.role.packs_rows, self.sequence_ranks
        batches = self._batches(micro_batches)
        outputs = [forward(batch.input_ids, batch.lengths, packs, ranks).cpu() for batch in batches]
        return outputs[: len(micro_batches)]

    @torch.no_grad()
    def lessons(self, micro_batches: Sequence[MicroBatch], told: Distillation) -> list[torch.Tensor]:
        self._check_policy()
        forward, ranks, found = self.model.module, self.sequence_ranks, []
        for batch in self._batches(micro_batches):
            packed = self._packed(batch)
            (values,) = forward(batch.input_ids, batch.response_mask, lengths=packed, ranks=ranks, told=told)
            found.append(values.cpu())
        return found[: len(micro_batches)]

    @torch.no_grad()
    def teacher_head(self, told: Distillation) -> TeacherHead | None:
        self._check_policy()
        module = self.model.module
        assert isinstance(module, TokenLogProbModel)
        with self._ready_to_score():
            parts = self._on_host(module.head.lm_head)
        if self.context.rank:
            return None
        plain = {name: part[: told.vocab_size].float().numpy() for name, part in parts.items()}
        return TeacherHead(plain["weight"], plain.get("bias"), module.head.bend, parts["weight"].dtype)

    def learn_from(self, told: Distillation, head: TeacherHead | None) -> None:
        self._check_policy()
        self._study = Study.of(told, head, self.context.device)

    def _on_host(self, layer: nn.Module) -> dict[str, torch.Tensor]:
        """A layer's whole parameters. Collective."""
        return {name: own.detach().to("cpu", copy=True) for name, own in layer.named_parameters(recurse=False)}

    def _exports(self, whole: bool, merged: bool = True) -> dict[str, Exported]:
        """By name, the weights that are sent to an engine."""
        exports = {export.name: export for export in self.model.exports}
        if not merged:
            apart = {part.name: part for export in exports.values() for part in export.apart()}
            return {name: export.bare() for name, export in exports.items()} | apart if whole else apart
        if whole:
            return exports
        trained = {name for name, parameter in self.model.module.named_parameters() if parameter.requires_grad}
        sent = with_partners(exports, {name for name, export in exports.items() if trained & {*export.parameters}})
        return {name: export for name, export in exports.items() if name in sent}

    def _outputs(self, forward: Callable[..., Any], batch: MicroBatch, loss: Loss, temperature: float) -> TokenOutputs:
        """What a loss needs, with gradient. `forward`: the model, or what an engine put around it."""
        with nullcontext() if self._activations is None else self._activations.saving():
            return self._kept_outputs(forward, batch, loss, temperature)

    def _kept_outputs(
        self, forward: Callable[..., Any], batch: MicroBatch, loss: Loss, temperature: float
    ) -> TokenOutputs:
        packed, balanced = self._packed(batch), batch.lengths if "balance" in loss.needs else None
        if "values" in loss.needs:
            self._check_critic()
            found = forward(batch.input_ids, batch.response_mask, packed, self.sequence_ranks, balanced)
            values, balance = (found, None) if balanced is None else found
            return TokenOutputs(values=values, balance=balance)
        self._check_policy()
        self._give_routes(batch)
        wants_entropy = "entropy" in loss.needs
        lesson = lesson_of(self._study, batch.lesson)
        asked = (batch.input_ids, batch.response_mask, temperature, wants_entropy, packed, self.sequence_ranks)
        log_probs, entropy, *more = forward(*asked, balanced, lesson)
        return TokenOutputs(
            log_probs=log_probs,
            entropy=entropy,
            divergence=None if lesson is None else more[0],
            balance=None if balanced is None else more[-1],
        )

    def _token_scores(
        self, forward: Callable[..., Any], batch: MicroBatch, temperature: float, entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        self._give_routes(batch)
        packed = self._packed(batch)
        return forward(batch.input_ids, batch.response_mask, temperature, entropy, packed, self.sequence_ranks)

    def _token_values(self, forward: Callable[..., Any], batch: MicroBatch) -> torch.Tensor:
        return forward(batch.input_ids, batch.response_mask, self._packed(batch), self.sequence_ranks)

    def _give_routes(self, batch: MicroBatch) -> None:
        if self._replay is not None:
            given = batch.routes
            self._replay.give(None if given is None else of_tokens(given, self._packed(batch), self.sequence_ranks))

    def _told_routes(self, batch: MicroBatch) -> torch.Tensor | None:
        if self._replay is None or not self.role.router_replay.tells:
            return None
        return of_rows(self._replay.told(), batch.input_ids, self._packed(batch), self.sequence_ranks)

    def _packed(self, batch: MicroBatch) -> torch.Tensor | None:
        """The lengths by which rows become a pack."""
        return batch.lengths if self.role.packs_rows else None

    def _batches(self, micro_batches: Sequence[MicroBatch]) -> Iterator[MicroBatch]:
        """On the device, while the weights are there to score; with those that keep ranks in step."""
        with self._ready_to_score(), self._without_dropout():
            for batch in self._evened_out(micro_batches):
                yield batch.to(self.context.device)

    @torch.no_grad()
    def _prepare(self) -> None:
        """Makes the model take packs, keep activations in host memory, and compiles it, where the role wants that.
        Collective; comes last in `setup`."""
        if self.role.packs_rows:
            use_packed_attention(self.model.pretrained, self.sequence_ranks is not None)
            with self._ready_to_score(), self._without_dropout():
                check_packs(self.model, self.context.device, self.sequence_ranks)
        if self.role.router_replay.is_on:
            self._replay = RouterReplay(self.model.pretrained)
        if self.role.model_args.enable_activation_offload:
            self._activations = ActivationOffload(self.model.module)
        if self.role.use_torch_compile:
            compile_model(self.model)

    def _evened_out(self, micro_batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """These, and behind them the empty ones that ranks need whose forward passes must be equal in number."""
        return micro_batches

    def _ready_to_score(self) -> AbstractContextManager[None]:
        """Around passes without gradient."""
        return nullcontext()

    def _without_dropout(self) -> AbstractContextManager[None]:
        adapters = self.model.adapters
        return nullcontext() if adapters is None else adapters.without_dropout()

    def _check_balance(self) -> None:
        """Of a model that is trained."""
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
