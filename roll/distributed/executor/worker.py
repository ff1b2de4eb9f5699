"""The work of train and score workers, in their own processes. No Ray here: arguments are plain data and numpy
arrays."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roll.algorithms.distillation import Distillation
from roll.algorithms.second_moment import SecondMomentChoice
from roll.configs.strategies.table import spec_of
from roll.configs.strategies.tested import inherited_text, refused_variables
from roll.distributed.executor.blueprint import BatchLimits, Blueprint, WorkerInfo
from roll.distributed.executor.jobs import (
    Score,
    TrainReport,
    TrainRequest,
    join_scores,
    micro_batches,
    tree_micro_batches,
    without_zero_gradient_rows,
)
from roll.distributed.executor.pixels import with_pixels
from roll.distributed.executor.weights.sender import Peers, SendPlan, SendReport, WeightSender
from roll.distributed.strategy.base import RankContext, ScoreStrategy, State, TrainStrategy
from roll.errors import StrategyError
from roll.models.head_scores import TeacherHead
from roll.models.hub import local_model
from roll.types.batch import (
    LossScale,
    MicroBatch,
    Rows,
    SampleBatch,
    SampledRows,
    TaughtRows,
    TokenOutputs,
    TokenScores,
    TrainBatch,
    rows_of,
)
from roll.types.collate import RowTable, assemble, pad, routes_of, unpad
from roll.types.columns import token_indices
from roll.types.metrics import MetricSums, SharedWork
from roll.types.packing import token_keys
from roll.types.row_numbers import row_numbers
from roll.utils.files import naming_full_disk
from roll.utils.imports import resolve

FlatScores = tuple[np.ndarray, np.ndarray, np.ndarray]  # row ids, lengths, values


def build_strategy(blueprint: Blueprint, *more: Any) -> Any:
    """The strategy of this rank, not set up yet. `more` is what its constructor takes beside settings and context.
    StrategyError if this process inherited a variable that changes what the role computes."""
    engine, allowed = spec_of(blueprint.settings.strategy_name).tested, blueprint.settings.allowed_arguments
    if found := [*refused_variables(engine, blueprint.role, os.environ, allowed, inherited=True)]:
        raise StrategyError(" ".join(inherited_text(name, blueprint.role, why) for name, why in found))
    context = RankContext(
        role=blueprint.role,
        rank=blueprint.rank,
        world_size=blueprint.world_size,
        local_rank=blueprint.local_rank,
        seed=blueprint.seed,
        device=torch.device(blueprint.device),
        shares_devices=blueprint.shares_devices,
        head=blueprint.head,
        keeps_kv=blueprint.keeps_kv,
        adapter_rank=blueprint.adapter_rank,
        reports_routes=blueprint.reports_routes,
        most_answers=blueprint.most_answers,
        shows_pictures=blueprint.shows_pictures,
        exact=blueprint.exact,
    )
    constructor: Any = resolve(blueprint.strategy_class)
    settings = blueprint.settings
    settings = settings.model_copy(update={"model_args": local_model(settings.model_args)})
    return constructor(settings, context, *more)


class ScoreWorker:
    """Scores given tokens or whole rows: the reference, a reward model, or any other frozen model."""

    def __init__(self, blueprint: Blueprint):
        self.strategy: ScoreStrategy = build_strategy(blueprint)

    def setup(self) -> WorkerInfo:
        self.strategy.setup()
        return WorkerInfo(self.strategy.dp_rank, self.strategy.dp_size)

    def score(
        self,
        kind: Score,
        temperature: float,
        limits: BatchLimits,
        chosen: Sequence[np.ndarray],
        *shards: Rows,
    ) -> tuple[Any, ...]:
        """Scores the chosen rows of each shard. Returns (SharedWork, flat float32 array of the first shard, of the
        second, ...); with routes, behind them the experts that tokens went to, int16 [tokens, layers, k] of each
        shard."""
        parts = _parts(chosen, shards)
        if not parts:
            self._forward(kind, [], temperature)  # a sharded engine needs all its ranks
            return (SharedWork(),)
        batch = type(parts[0]).concatenate(parts)
        groups = _cut(self.strategy, batch, np.arange(len(batch)), limits)
        outputs = self._forward(kind, _padded(self.strategy, batch, groups, limits), temperature)
        ends = np.cumsum([part.num_tokens for part in parts])[:-1]
        flats = [_in_row_order(of_kind, groups, batch.lengths) for of_kind in outputs]
        return (self.strategy.take_shared_work(), *(part for flat in flats for part in np.split(flat, ends)))

    def compute_teacher_targets(
        self, distillation: Distillation, limits: BatchLimits, chosen: Sequence[np.ndarray], *shards: Rows
    ) -> tuple[Any, ...]:
        """Compute a teacher's targets, shard by shard: (SharedWork, float32 [tokens, numbers of each], ...)."""
        parts = _parts(chosen, shards)
        if not parts:
            self.strategy.teacher_targets([], distillation)
            return (SharedWork(),)
        batch = type(parts[0]).concatenate(parts)
        groups = _cut(self.strategy, batch, np.arange(len(batch)), limits)
        targets = self.strategy.teacher_targets(_padded(self.strategy, batch, groups, limits), distillation)
        flat = np.concatenate([values.numpy() for values in targets])
        ends = np.cumsum([part.response_lengths.sum() for part in parts])
        flats = np.split(_reordered(flat, groups, batch.response_lengths), ends[:-1])
        return (self.strategy.take_shared_work(), *flats)

    def teacher_head(self, distillation: Distillation) -> TeacherHead | None:
        return self.strategy.teacher_head(distillation)

    def score_rows(self, limits: BatchLimits, rows: Rows) -> tuple[np.ndarray, SharedWork]:
        """Numbers of these rows, float32 [rows, labels]."""
        if not len(rows):
            self.strategy.row_scores([])  # a sharded engine needs all its ranks
            return np.zeros((0, 0), np.float32), SharedWork()
        groups = _cut(self.strategy, rows, np.arange(len(rows)), limits)
        outputs = self.strategy.row_scores(_padded(self.strategy, rows, groups, limits))
        scores = np.concatenate([output.numpy() for output in outputs])[np.argsort(np.concatenate(groups))]
        return scores, self.strategy.take_shared_work()

    def _forward(self, kind: Score, batches: Sequence[MicroBatch], temperature: float) -> list[list[torch.Tensor]]:
        """Run the forward passes and return one or two kinds of scores for every micro batch."""
        if kind == "values":
            return [[_required(output.values) for output in self.strategy.values(batches)]]
        scored = self.strategy.base_log_probs if kind == "base_log_probs" else self.strategy.log_probs
        outputs: list[TokenOutputs] = scored(batches, temperature)
        columns = [[_required(output.log_probs) for output in outputs]]
        if kind == "log_probs_and_routes":
            columns.append([_required(output.routes) for output in outputs])
        return columns

    def offload_states(self, states: frozenset[State]) -> None:
        self.strategy.offload_states(states)

    def load_states(self, states: frozenset[State]) -> None:
        self.strategy.load_states(states)

    def shutdown(self) -> None:
        self.strategy.shutdown()


class TrainWorker(ScoreWorker):
    """Learns: the policy, or the critic."""

    strategy: TrainStrategy

    def __init__(self, blueprint: Blueprint):
        self.strategy = build_strategy(blueprint, blueprint.plan)
        self._sender = WeightSender(blueprint.rank, torch.device(blueprint.device))
        self._sends_adapters = blueprint.adapter_rank is not None

    def setup(self) -> WorkerInfo:
        self.strategy.setup()
        strategy = self.strategy
        return WorkerInfo(strategy.dp_rank, strategy.dp_size, strategy.exports_weights, strategy.shares_prefixes)

    def set_teacher_head(self, distillation: Distillation, head: TeacherHead | None) -> None:
        self.strategy.set_teacher_head(distillation, head)

    def assemble(self, table: RowTable | None, *pieces: SampledRows) -> tuple[Any, ...]:
        """Returns (None, the SampleBatch with these rows), without a table (None,)."""
        return (None,) if table is None else (None, assemble(table, pieces))

    def train(
        self,
        request: TrainRequest,
        kinds: Sequence[tuple[str, np.ndarray, np.ndarray]],
        samples: Rows,
        expert: Rows | None = None,
        *flats: Any,
    ) -> TrainReport:
        """Assigns credit to the tokens of the shard, if the job says what they earned, then makes its updates, each
        with its part of the `expert` rows. `kinds[i]` says what the flat array i is: the field of TokenScores, its row
        ids and their lengths. Without credit it is a teacher's lesson."""
        job, batch, sums = request.job, samples, MetricSums()
        if job.credit is not None:
            assert isinstance(samples, SampleBatch), "credit is for what was sampled"
            scores = _gather_scores(request.rows, kinds, flats, samples)
            batch, sums = job.credit.assign(samples, scores, self.strategy.all_reduce_sum)
        elif kinds:
            batch = _taught(request.rows, kinds, flats, samples)
        numbers = row_numbers(batch)
        scales = self._scales(rows_of(batch), job.num_updates, expert)
        shown = self._shown(expert, request)
        chunks, counts = np.split(np.arange(len(samples)), job.num_updates), request.counts
        idle = np.zeros(len(samples), bool)
        if job.zero_gradient_rows is not None:
            assert isinstance(batch, TrainBatch), "without credit no row is idle"
            idle = job.zero_gradient_rows.find(batch)
            chunks, counts = self._without_zero_gradient_rows(chunks, idle, batch, request.limits)
            idle[np.concatenate(chunks)] = False  # these are computed, and speak for themselves
            sums.merge([job.zero_gradient_rows.metrics(batch.samples, idle, job.epochs)])
        elif self.strategy.shares_prefixes:
            counts = self._most_needed(batch, chunks, request.limits)
        if job.choice is not None:
            assert isinstance(batch, TrainBatch), "tokens are chosen by the credit they got"
            at = (self.strategy.all_reduce_sum, self.strategy.dp_rank, self.strategy.dp_size)
            batch = replace(batch, chosen=job.choice.find(batch, chunks, *at))
        last, shared = dict[str, float](), SharedWork()
        for _ in range(job.epochs):
            for chunk, count, scale, more in zip(chunks, counts, scales, shown, strict=True):
                if scale.all_tokens == 0:  # nothing to learn from on any rank
                    sums.add("skipped_updates", 1.0, 1.0)
                    continue
                if job.moment_choice is not None:
                    assert isinstance(batch, TrainBatch), "tokens are chosen by the credit they got"
                    batch = self._with_choice(job.moment_choice, batch, chunk, request)
                update, last = self._update(request, batch, chunk, count, scale, more)
                shared = shared.plus(self.strategy.take_shared_work())
                sums.merge([update])
                sums.add("grad_norm", last["grad_norm"], 1.0)
        if shared.tokens:
            sums.add("prefix_sharing_factor", shared.row_tokens, shared.tokens)
        last_metrics = {name: last[name] for name in last if name != "grad_norm"}
        num_tokens = sum(scale.all_tokens for scale in scales)
        return TrainReport(sums.to_floats(), last_metrics, idle, num_tokens, numbers, shared)

    def save_checkpoint(self, directory: Path) -> None:
        with naming_full_disk(directory):
            directory.mkdir(parents=True, exist_ok=True)
            self.strategy.save_checkpoint(directory)

    def load_checkpoint(self, directory: Path) -> None:
        self.strategy.load_checkpoint(directory)

    def save_hf_model(self, directory: Path) -> None:
        with naming_full_disk(directory):
            directory.mkdir(parents=True, exist_ok=True)
            self.strategy.save_hf_model(directory)

    def publish_weights(
        self, peers: Peers, plan: SendPlan, bucket_bytes: int, version: int, whole: bool = True
    ) -> SendReport | None:
        """Sends all weights to all receivers, or those that training changes; collective. None but on the lead."""
        options = {"merged": False} if self._sends_adapters else {}  # which only strategies that can send them take
        buckets = self.strategy.export_weights(bucket_bytes, plan.senders, whole, **options)
        versions = self._sender.send(buckets, peers, plan, version, whole)
        return None if versions is None else SendReport(versions, self._sender.sent_bytes)

    def shutdown(self) -> None:
        self._sender.close()
        super().shutdown()

    def _scales(self, rows: Rows, num_updates: int, expert: Rows | None) -> list[LossScale]:
        kinds = [rows] if expert is None else [rows, expert]
        # A rank's rows stand update after update, so row u of the reshape holds the rows of update u.
        per_update = [kind.response_lengths.reshape(num_updates, -1) for kind in kinds]
        # Per update [tokens, rows with tokens] of the policy, then of the expert: all of it travels in one collective.
        counts = np.stack([count for counted in per_update for count in (counted.sum(1), (counted > 0).sum(1))], axis=1)
        sums = np.array(self.strategy.all_reduce_sum(counts.ravel().tolist())).reshape(counts.shape)
        counted = [[LossScale(round(tokens), round(rows)) for tokens, rows in of.reshape(-1, 2)] for of in sums]
        return [replace(policy_scale, expert=others[0] if others else None) for policy_scale, *others in counted]

    def _shown(self, expert: Rows | None, request: TrainRequest) -> list[list[MicroBatch]]:
        num_updates, limits = request.job.num_updates, request.limits
        if expert is None:
            return [[] for _ in range(num_updates)]
        chunks = np.split(np.arange(len(expert)), num_updates)
        return [
            _padded(self.strategy, expert, micro_batches(expert.lengths, rows, limits, count), limits)
            for rows, count in zip(chunks, request.expert_counts, strict=True)
        ]

    def _without_zero_gradient_rows(
        self, chunks: Sequence[np.ndarray], idle: np.ndarray, batch: Rows | TrainBatch, limits: BatchLimits
    ) -> tuple[list[np.ndarray], list[int]]:
        """The rows of each update that its loss has to see, and their number of micro batches. Every rank takes part in
        every update, with an idle row if it has no other."""
        lengths = rows_of(batch).lengths
        moving = [without_zero_gradient_rows(chunk, idle, lengths, 1) for chunk in chunks]
        counts = self._most_needed(batch, moving, limits)
        return [
            without_zero_gradient_rows(c, idle, lengths, count) for c, count in zip(chunks, counts, strict=True)
        ], counts

    def _most_needed(self, batch: Rows | TrainBatch, chunks: Sequence[np.ndarray], limits: BatchLimits) -> list[int]:
        """Micro batches of each update: as many as the rank with the most needs. Collective."""
        # A sum in which each rank fills its own row is a gather; the maximum per update follows from it.
        needed = np.zeros((self.strategy.dp_size, len(chunks)))
        needed[self.strategy.dp_rank] = [len(_cut(self.strategy, batch, chunk, limits)) for chunk in chunks]
        of_ranks = np.array(self.strategy.all_reduce_sum(needed.ravel().tolist())).reshape(needed.shape)
        return [round(most) for most in of_ranks.max(axis=0)]

    def _with_choice(
        self, choice: SecondMomentChoice, batch: TrainBatch, rows: np.ndarray, request: TrainRequest
    ) -> TrainBatch:
        """The batch with the choice for the update of these rows, by log-probs of the weights as they are. Without old
        log-probs every ratio is 1 and nothing is chosen. Collective."""
        if batch.old_log_probs is None:
            return batch
        lengths = batch.samples.lengths
        groups = _cut(self.strategy, batch, rows, request.limits)
        padded = _padded(self.strategy, batch, groups, request.limits)
        (outputs,) = self._forward("log_probs", padded, request.job.temperature)
        self.strategy.take_shared_work()  # what an update shares is counted without this pass
        tokens, log_probs = token_indices(lengths, np.sort(rows)), _in_row_order(outputs, groups, lengths)
        return replace(batch, chosen=choice.find(batch, tokens, log_probs, self.strategy.all_reduce_sum))

    def _update(
        self,
        request: TrainRequest,
        batch: Rows | TrainBatch,
        rows: np.ndarray,
        count: int,
        scale: LossScale,
        more: Sequence[MicroBatch],
    ) -> tuple[MetricSums, dict[str, float]]:
        limits = request.limits
        groups = _cut(self.strategy, batch, rows, limits, count)
        padded = [*_padded(self.strategy, batch, groups, limits), *more]
        sums, values = self.strategy.train_step(padded, request.job.loss, scale, request.job.temperature)
        return sums.to_floats(), values


def _cut(
    strategy: ScoreStrategy, batch: Rows | TrainBatch, rows: np.ndarray, limits: BatchLimits, at_least: int = 1
) -> list[np.ndarray]:
    """These rows in micro batches, by their lengths, or by their tokens where they may share them."""
    of_rows = rows_of(batch)
    if not strategy.shares_prefixes or limits.together > 1:
        return micro_batches(of_rows.lengths, rows, limits, at_least)
    routes, ends = routes_of(batch), np.cumsum(of_rows.lengths)
    spans = [slice(ends[row] - of_rows.lengths[row], ends[row]) for row in rows]
    keys = [token_keys(of_rows.input_ids[span], None if routes is None else routes[span]) for span in spans]
    return tree_micro_batches(keys, rows, limits, at_least, strategy.computed_tokens)


def _padded(
    strategy: ScoreStrategy, batch: Rows | TrainBatch, groups: Sequence[np.ndarray], limits: BatchLimits
) -> list[MicroBatch]:
    padded = [pad(batch, group, limits.round_to) for group in groups]
    if rows_of(batch).media is None:
        return padded
    if not strategy.takes_media:
        raise StrategyError(f"these rows show pictures, which {type(strategy).__name__} does not support")
    return [replace(micro_batch, media=with_pixels(micro_batch.media)) for micro_batch in padded]


def _gather_scores(
    rows: np.ndarray,
    kinds: Sequence[tuple[str, np.ndarray, np.ndarray]],
    flats: Sequence[np.ndarray],
    samples: SampleBatch,
) -> TokenScores:
    pieces: dict[str, list[FlatScores]] = {}
    for (kind, piece_rows, lengths), flat in zip(kinds, flats, strict=True):
        pieces.setdefault(kind, []).append((piece_rows, lengths, flat))
    tokens = samples.response_lengths
    entries = {kind: tokens if kind == "teacher_targets" else samples.lengths for kind in pieces}
    return TokenScores(**{kind: join_scores(p, rows, entries[kind], tokens > 0) for kind, p in pieces.items()})


def _taught(
    rows: np.ndarray,
    kinds: Sequence[tuple[str, np.ndarray, np.ndarray]],
    flats: Sequence[np.ndarray],
    samples: Rows,
) -> TaughtRows:
    pieces = [(piece_rows, lengths, flat) for (_, piece_rows, lengths), flat in zip(kinds, flats, strict=True)]
    counts = samples.response_lengths
    return TaughtRows(**vars(samples), teacher_targets=join_scores(pieces, rows, counts, counts > 0))


def _parts(chosen: Sequence[np.ndarray], shards: Sequence[Rows]) -> list[Rows]:
    return [shard.select(rows) for shard, rows in zip(shards, chosen, strict=True)]


def _in_row_order(outputs: Sequence[torch.Tensor], groups: Sequence[np.ndarray], lengths: np.ndarray) -> np.ndarray:
    """Padded outputs of micro batches as one flat array in row order."""
    flat = np.concatenate([unpad(values, lengths[rows]) for values, rows in zip(outputs, groups, strict=True)])
    return _reordered(flat, groups, lengths)


def _reordered(flat: np.ndarray, groups: Sequence[np.ndarray], lengths: np.ndarray) -> np.ndarray:
    """Entries of micro batches in row order. `lengths`: entries of each row."""
    order = np.concatenate(groups)
    return flat[token_indices(lengths[order], np.argsort(order))]


def _required(values: torch.Tensor | None) -> torch.Tensor:
    assert values is not None
    return values
