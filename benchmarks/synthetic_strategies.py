"""The classes behind synthetic.py."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from roll.algorithms.loss import Loss
from roll.configs.plan.batch_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext, TrainStrategy
from roll.distributed.strategy.generate_base import GenerateStrategy
from roll.distributed.weights.bucket import BucketSource, GroupSpec, WeightBucket, fill_buckets
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums
from roll.types.rollout import Answered, Generation, GenerationRequest


class SyntheticEngine(GenerateStrategy):
    """Answers of exactly `max_new_tokens` random tokens, other ones for each sample."""

    def __init__(self, role: WorkerConfig, context: RankContext):
        self._vocabulary = int(role.strategy_config.get("vocabulary", 300))
        self._version = 0

    def setup(self) -> None:
        random = np.random.default_rng(0)
        self._ids = random.integers(3, self._vocabulary, 1 << 20).astype(np.int32)
        self._log_probs = -random.random(1 << 20, np.float32)

    async def start(self) -> None:
        pass

    @property
    def policy_version(self) -> int:
        return self._version

    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        count = request.sampling.max_new_tokens
        starts = (request.sampling.seed or 0) + 7919 * np.array(request.samples)
        starts %= len(self._ids) - count
        versions = np.full(count, self._version, np.int32)
        answers = [
            Generation(self._ids[start : start + count], self._log_probs[start : start + count], versions, "length")
            for start in starts
        ]
        if answered is not None:
            for index, answer in zip(request.samples, answers, strict=True):
                answered(index, answer)
        return answers

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        pass

    async def pause(self) -> None:
        pass

    async def resume(self) -> None:
        pass

    async def join_weight_group(self, group: GroupSpec, first_rank: int) -> None:
        raise NotImplementedError

    async def begin_weight_update(self, whole: bool = True) -> None:
        pass

    async def import_weights(self, source: BucketSource) -> None:
        pass

    async def finish_weight_update(self, version: int) -> None:
        self._version = version


class SyntheticTrainer(TrainStrategy):
    """Log-probs of 0, and updates that change nothing."""

    def __init__(self, role: WorkerConfig, context: RankContext, plan: TrainPlan):
        self.dp_rank, self.dp_size = context.rank, context.world_size

    def setup(self) -> None:
        pass

    def log_probs(
        self, micro_batches: Sequence[MicroBatch], temperature: float, entropy: bool = False
    ) -> list[TokenOutputs]:
        return [TokenOutputs(log_probs=torch.zeros(batch.input_ids.shape)) for batch in micro_batches]

    def values(self, micro_batches: Sequence[MicroBatch]) -> list[TokenOutputs]:
        return [TokenOutputs(values=torch.zeros(batch.input_ids.shape)) for batch in micro_batches]

    def train_step(
        self, micro_batches: Sequence[MicroBatch], loss: Loss, scale: LossScale, temperature: float
    ) -> tuple[MetricSums, dict[str, float]]:
        return MetricSums(), {"grad_norm": 1.0, "learning_rate": 0.0}

    def export_weights(
        self, bucket_bytes: int, to: Collection[int] = (), whole: bool = True, merged: bool = True
    ) -> Iterator[WeightBucket]:
        for bucket in fill_buckets(iter([("weight", torch.zeros(4))]), bucket_bytes):
            yield bucket if self.exports_weights or self.dp_rank in to else []

    @property
    def exports_weights(self) -> bool:
        return self.dp_rank == 0

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        return [self.dp_size * value for value in values]  # ranks that hold about the same

    def save_checkpoint(self, directory: Path) -> None:
        pass

    def load_checkpoint(self, directory: Path) -> None:
        pass

    def save_hf_model(self, directory: Path) -> None:
        pass
