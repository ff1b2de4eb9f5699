"""Clusters of fakes, and rows to feed them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from roll.configs.plan.layout import RolePlace, WorkerSlot
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import ModelArgs
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.processes.cluster import WorkerSpec
from roll.types.batch import RowMeta, SampleBatch

_TRAIN = "tests.fakes:WatchedTrainWorker", "tests.fakes:FakeTrainStrategy"
WORKER_OF: dict[str, tuple[str, str]] = {
    "actor_train": _TRAIN,
    "critic": _TRAIN,
    "reference": ("roll.distributed.executor.worker:ScoreWorker", "tests.fakes:FakeScoreStrategy"),
    "actor_infer": ("tests.fakes:WatchedGenerateWorker", "tests.fakes:FakeGenerateStrategy"),
}


def worker_setup(
    role: str,
    devices: Sequence[int] = (0,),
    seed: int = 0,
    worker_class: str | None = None,
    arguments: tuple[Any, ...] = (),
    system_envs: dict[str, str] | None = None,
    max_restarts: int = 0,
    num_ranks: int = 1,
    model: str | None = None,
) -> tuple[RolePlace, WorkerSpec]:
    """One worker per device: those of a role with the fake strategies, or of `worker_class`. Of an engine
    `num_ranks` processes read weights, as it seems; `model` has its tokenizer."""
    place = RolePlace(role, tuple(WorkerSlot(i, 0, i, (d,), (d,)) for i, d in enumerate(devices)))
    is_engine = role == "actor_infer"
    per_rank: list[tuple[Any, ...]] = [arguments] * len(devices)
    if worker_class is None:
        worker_class, strategy = WORKER_OF[role]
        settings = WorkerConfig(num_gpus_per_worker=num_ranks, model_args=ModelArgs(model_name_or_path=model))
        per_rank = [
            (Blueprint(role, rank, len(devices), rank, seed, "cpu", strategy, settings),)
            for rank in range(len(devices))
        ]
    spec = WorkerSpec(
        worker_class, per_rank, system_envs or {}, is_engine, is_distributed=not is_engine, max_restarts=max_restarts
    )
    return place, spec


def make_samples(lengths: Sequence[int], num_prompt_tokens: int = 1, seed: int = 0) -> SampleBatch:
    """Rows of random tokens; all but the first `num_prompt_tokens` of each row are sampled. Row i has reward i."""
    rng = np.random.default_rng(seed)
    num_rows, num_tokens = len(lengths), int(sum(lengths))
    position = np.concatenate([np.arange(length) for length in lengths])
    mask = position >= num_prompt_tokens
    return SampleBatch(
        lengths=np.array(lengths, np.int32),
        input_ids=rng.integers(1, 100, num_tokens).astype(np.int32),
        response_mask=mask,
        rollout_log_probs=np.zeros(num_tokens, np.float32),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=np.arange(num_rows, dtype=np.float32),
        group_ids=np.arange(num_rows, dtype=np.int64) // 2,
        trajectory_ids=np.arange(num_rows, dtype=np.int64),
        turns=np.zeros(num_rows, np.int32),
        domains=np.array(["math"] * num_rows),
        finish_reasons=np.zeros(num_rows, np.int8),
        loss_weights=np.ones(num_rows, np.float32),
    )


def meta_of(samples: SampleBatch) -> RowMeta:
    """What the driver would know of these rows."""
    return RowMeta(
        lengths=samples.lengths,
        response_lengths=samples.response_lengths,
        rewards=samples.rewards,
        group_ids=samples.group_ids,
        trajectory_ids=samples.trajectory_ids,
        turns=samples.turns,
        domains=samples.domains,
        finish_reasons=samples.finish_reasons,
    )
