"""Calls that the driver can make to the workers of each role: handles and metadata, no tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import ray

from roll.algorithms.distillation import Distillation
from roll.distributed.executor.blueprint import BatchLimits, WorkerInfo
from roll.distributed.executor.jobs import (
    RowChunk,
    Score,
    ScorePiece,
    ScoreSet,
    TrainJob,
    TrainReport,
    TrainRequest,
    micro_batches,
    spread,
)
from roll.distributed.executor.placement import Claim
from roll.distributed.executor.processes.cluster import Calls, Cluster
from roll.distributed.executor.usage import Work
from roll.distributed.strategy.base import State
from roll.errors import StrategyError
from roll.types.batch import Rows, RowSet, SampleSet, Shard
from roll.types.collate import RowTable
from roll.types.metrics import MetricSums
from roll.types.row_numbers import ROW_STAGES


def share(samples: Rows, rows_by_rank: Sequence[np.ndarray]) -> tuple[Shard, ...]:
    return tuple(Shard(rows, ray.put(samples.select(rows))) for rows in rows_by_rank)


def total_of(scores: ScoreSet) -> float:
    handles: list[Any] = [piece.handle for piece in scores.pieces]
    return float(sum(values.sum(dtype=np.float64) for values in ray.get(handles)))


class ScoreCluster:
    """Workers that score given tokens, any number of them: shards are split among them by length."""

    def __init__(self, cluster: Cluster, limits: BatchLimits):
        self.cluster = cluster
        self._limits = limits
        self.info: tuple[WorkerInfo, ...] = ()
        self._work: dict[str, Work] = {}

    @property
    def everything(self) -> Claim:
        return Claim(self.cluster)

    @property
    def weights(self) -> Claim:
        return Claim(self.cluster, frozenset({State.WEIGHTS}))

    def start_setup(self) -> Calls:
        return self.cluster.start_all("setup")

    def finish_setup(self, replies: Sequence[WorkerInfo]) -> None:
        self.info = tuple(replies)

    @property
    def dp_size(self) -> int:
        return self.info[0].dp_size

    def log_probs(self, samples: RowSet | SampleSet, temperature: float, wanted: np.ndarray | None = None) -> ScoreSet:
        """Log-probs of the response tokens, without gradient. `wanted`: row numbers; None: all."""
        return self._score("log_probs", samples, temperature, wanted)[0]

    def log_probs_and_routes(self, samples: SampleSet, temperature: float) -> tuple[ScoreSet, ScoreSet]:
        """Log-probs of the response tokens, and the experts that all tokens went to, without gradient."""
        log_probs, routes = self._score("log_probs_and_routes", samples, temperature)
        return log_probs, routes

    def base_log_probs(self, samples: RowSet | SampleSet, temperature: float) -> ScoreSet:
        """Log-probs of the response tokens under the model without its adapters, without gradient."""
        return self._score("base_log_probs", samples, temperature)[0]

    def values(self, samples: RowSet | SampleSet) -> ScoreSet:
        """A critic's values at the response tokens, without gradient."""
        return self._score("values", samples, 1.0)[0]

    def teacher_targets(
        self, samples: RowSet | SampleSet, response_lengths: np.ndarray, distillation: Distillation
    ) -> ScoreSet:
        """Compute a teacher's targets for the response tokens, of which each row has `response_lengths`."""
        entries = [_reports_of(response_lengths, shard) for shard in samples.shards]
        return self._split("compute_teacher_targets", (distillation, self._limits), samples, entries)[0]

    def teacher_head(self, distillation: Distillation) -> object:
        """A handle on the head that makes distributions of `teacher_targets`, where these are hidden states."""
        return ray.put(self.cluster.call_all("teacher_head", distillation)[0])

    def row_scores(self, rows: Rows) -> np.ndarray:
        """A number per label of the head for each row, float32 [rows, labels], without gradient."""
        spans = [np.arange(*((p[0].start, p[0].stop) if p else (0,))) for p in spread([rows.lengths], self.dp_size)]
        handles = [ray.put(rows.select(span)) for span in spans]
        noted = self._note("score_rows", rows.lengths)
        replies = self.cluster.call_ranks("score_rows", [(self._limits, handles[info.dp_rank]) for info in self.info])
        of_rank = {}
        for info, (scores, shared) in zip(self.info, replies, strict=True):
            of_rank[info.dp_rank] = scores
            noted.shared = noted.shared.plus(shared)
        return np.concatenate([of_rank[rank] for rank, span in enumerate(spans) if len(span)])

    def take_work(self) -> dict[str, Work]:
        work, self._work = self._work, {}
        return work

    def _note(self, method: str, lengths: np.ndarray, times: int = 1) -> Work:
        work, whole = self._work.setdefault(method, Work()), lengths.astype(np.int64)
        work.rows += len(lengths)
        work.tokens += times * int(whole.sum())
        work.pairs += times * float((whole * (whole + 1) // 2).sum())
        return work

    def _score(
        self,
        kind: Score,
        samples: RowSet | SampleSet,
        temperature: float,
        wanted: np.ndarray | None = None,
    ) -> list[ScoreSet]:
        entries = [_lengths_of(samples, shard) for shard in samples.shards]
        kinds = 2 if kind == "log_probs_and_routes" else 1
        return self._split("score", (kind, temperature, self._limits), samples, entries, wanted, kinds)

    def _split(
        self,
        method: str,
        arguments: tuple[Any, ...],
        samples: RowSet | SampleSet,
        entries: Sequence[np.ndarray],
        wanted: np.ndarray | None = None,
        kinds: int = 1,
    ) -> list[ScoreSet]:
        """Spread the shards over the workers and collect their scores. `entries`: how many entries each row has. The
        workers compute `kinds` kinds of numbers, those of one kind behind those of the other."""
        lengths = [_lengths_of(samples, shard) for shard in samples.shards]
        work = [
            [(p.shard, chosen) for p in pieces if len(chosen := _chosen(samples.shards[p.shard], p, wanted))]
            for pieces in spread(lengths, self.dp_size)
        ]
        per_rank = []
        for info in self.info:
            pieces = work[info.dp_rank]
            handles = [samples.shards[shard].handle for shard, _ in pieces]
            per_rank.append((*arguments, [chosen for _, chosen in pieces], *handles))
        row_lengths = (lengths[shard][chosen] for pieces in work for shard, chosen in pieces)
        noted = self._note(method, np.concatenate([lengths[0][:0], *row_lengths]))
        counts = [kinds * (len(inputs) - len(arguments) - 1) for inputs in per_rank]
        calls, values = self.cluster.start_split(method, counts, per_rank)
        for shared in calls.result():
            noted.shared = noted.shared.plus(shared)
        first_of = {info.dp_rank: rank for rank, info in reversed(list(enumerate(self.info)))}
        by_kind: list[list[ScorePiece]] = [[] for _ in range(kinds)]
        for dp_rank, pieces in enumerate(work):
            handles = values[first_of[dp_rank]]
            for kind, score_pieces in enumerate(by_kind):
                of_kind = handles[kind * len(pieces) : (kind + 1) * len(pieces)]
                for (shard, chosen), handle in zip(pieces, of_kind, strict=True):
                    score_pieces.append(ScorePiece(samples.shards[shard].rows[chosen], entries[shard][chosen], handle))
        return [ScoreSet(tuple(score_pieces)) for score_pieces in by_kind]


class TrainCluster(ScoreCluster):
    """Workers that learn: actor_train, critic. A SampleSet they train on has one shard per data-parallel rank."""

    def __init__(self, cluster: Cluster, limits: BatchLimits, train_limits: BatchLimits):
        super().__init__(cluster, limits)
        self._train_limits = train_limits
        self.row_numbers = np.zeros((0, len(ROW_STAGES) + 1))
        """What stands for each row of the last training, by row id: `row_numbers`."""

    @property
    def row_advantages(self) -> np.ndarray:
        """Sum of the advantages over the response tokens of each row, and their number. float64 [R, 2]."""
        return self.row_numbers[:, -2:]

    @property
    def shares_prefixes(self) -> bool:
        return self.info[0].shares_prefixes

    @property
    def lead_rank(self) -> int:
        return next(rank for rank, info in enumerate(self.info) if info.exports_weights)

    def assemble(
        self, rows_by_rank: Sequence[np.ndarray], tables: Sequence[RowTable], pieces: Sequence[object]
    ) -> tuple[Shard, ...]:
        """The shard of each data-parallel rank, put together by a worker of it from pieces in the object store."""
        first_of = {info.dp_rank: rank for rank, info in reversed(list(enumerate(self.info)))}
        per_rank: list[tuple[Any, ...]] = [(None,)] * len(self.info)
        for dp_rank, table in enumerate(tables):
            used, local_table = table.local_rows()
            per_rank[first_of[dp_rank]] = (local_table, *(pieces[number] for number in used))
        calls, values = self.cluster.start_split("assemble", [int(a[0] is not None) for a in per_rank], per_rank)
        calls.result()
        return tuple(Shard(rows, *values[first_of[dp_rank]]) for dp_rank, rows in enumerate(rows_by_rank))

    def set_teacher_head(self, distillation: Distillation, head: object | None) -> None:
        """Give the workers the teacher's head and the distillation settings, before the first targets arrive."""
        self.cluster.call_all("set_teacher_head", distillation, head)

    def train(
        self,
        samples: RowSet | SampleSet,
        job: TrainJob,
        scores: Mapping[str, ScoreSet] = MappingProxyType({}),
        meanwhile: Callable[[], object] = lambda: None,
        expert: RowSet | None = None,
    ) -> dict[str, float]:
        """Assigns credit and makes `num_updates * epochs` updates. `scores` by field of TokenScores: old_log_probs,
        ref_log_probs, values, lesson, routes; without credit, a teacher's lessons. `meanwhile` is called while the
        ranks are at it. `expert`: an expert's rows, a part of which joins each update. Returns metrics without a
        prefix."""
        if len(samples.shards) != self.dp_size:
            raise StrategyError(
                f"{self.cluster.role} has {self.dp_size} data-parallel ranks, the samples {len(samples.shards)} shards"
            )
        counts = self._num_micro_batches(samples, job.num_updates)
        expert_counts = () if expert is None else self._num_micro_batches(expert, job.num_updates)
        per_rank = []
        for info in self.info:
            shard = samples.shards[info.dp_rank]
            pieces = [(kind, piece) for kind, score_set in scores.items() for piece in score_set.of(shard.rows)]
            credit = None if job.credit is None else job.credit.of(shard.rows)
            request = TrainRequest(replace(job, credit=credit), shard.rows, self._train_limits, counts, expert_counts)
            kinds = [(kind, piece.rows, piece.lengths) for kind, piece in pieces]
            expert_handle = None if expert is None else expert.shards[info.dp_rank].handle
            per_rank.append((request, kinds, shard.handle, expert_handle, *(piece.handle for _, piece in pieces)))
        calls = self.cluster.start_ranks("train", per_rank)
        meanwhile()
        reports: list[TrainReport] = calls.result()
        idle = {info.dp_rank: report.left_out for info, report in zip(self.info, reports, strict=True)}
        lengths = [_lengths_of(samples, shard) * ~idle[rank] for rank, shard in enumerate(samples.shards)]
        lengths += [] if expert is None else [_lengths_of(expert, shard) for shard in expert.shards]
        metrics = MetricSums().merge(report.sums for report in reports).result() | reports[0].last
        work = self._note("train", np.concatenate(lengths), job.epochs)
        work.learnt += reports[0].num_tokens
        for report in reports:
            work.shared = work.shared.plus(report.shared)
        self._keep_numbers(samples, reports)
        return metrics

    def _keep_numbers(self, samples: RowSet | SampleSet, reports: Sequence[TrainReport]) -> None:
        shards = {info.dp_rank: report.numbers for info, report in zip(self.info, reports, strict=True)}
        rows = np.concatenate([shard.rows for shard in samples.shards])
        self.row_numbers = np.zeros((int(rows.max(initial=-1)) + 1, len(ROW_STAGES) + 1))
        for dp_rank, shard in enumerate(samples.shards):
            self.row_numbers[shard.rows] = shards[dp_rank]

    def save_checkpoint(self, directory: Path) -> None:
        self.cluster.call_all("save_checkpoint", directory)

    def load_checkpoint(self, directory: Path) -> None:
        self.cluster.call_all("load_checkpoint", directory)

    def save_hf_model(self, directory: Path) -> None:
        self.cluster.call_all("save_hf_model", directory)

    def _num_micro_batches(self, samples: RowSet | SampleSet, num_updates: int) -> tuple[int, ...]:
        """Micro batches of every update: as many as the rank with the most needs."""
        limits = self._train_limits
        most = np.zeros(num_updates, np.int64)
        for shard in samples.shards:
            lengths = _lengths_of(samples, shard)
            for update, rows in enumerate(np.split(np.arange(len(lengths)), num_updates)):
                most[update] = max(most[update], len(micro_batches(lengths, rows, limits)))
        return tuple(int(count) for count in most)


def _chosen(shard: Shard, piece: RowChunk, wanted: np.ndarray | None) -> np.ndarray:
    """Places in the shard of the piece's rows that are wanted; a padding row that the metadata leaves out is not."""
    places = np.arange(piece.start, piece.stop)
    if wanted is None:
        return places
    rows = shard.rows[places]
    return places[(rows < len(wanted)) & wanted[np.minimum(rows, len(wanted) - 1)]]


def _reports_of(response_lengths: np.ndarray, shard: Shard) -> np.ndarray:
    """Response tokens of the shard's rows; a padding row that the metadata leaves out has none."""
    last = len(response_lengths) - 1
    return np.where(shard.rows <= last, response_lengths[np.minimum(shard.rows, last)], 0)


def _lengths_of(samples: RowSet | SampleSet, shard: Shard) -> np.ndarray:
    """Tokens of the shard's rows. A padding row that the metadata leaves out is a copy of the shortest row."""
    lengths = samples.lengths
    return np.where(shard.rows < len(lengths), lengths[np.minimum(shard.rows, len(lengths) - 1)], lengths.min())
