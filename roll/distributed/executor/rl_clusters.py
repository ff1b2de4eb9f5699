"""The clusters of reinforcement learning: a policy that learns, engines that sample, and the way of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.executor.clusters import RunClusters
from roll.distributed.executor.placement import Occupant
from roll.distributed.executor.pools.job_pool import JobPool
from roll.distributed.executor.roles import ScoreCluster, TrainCluster
from roll.distributed.executor.rollout.generate_cluster import GenerateCluster
from roll.distributed.executor.weights.from_files import FileWeights
from roll.distributed.executor.weights.routes import plan_send
from roll.distributed.executor.weights.sync import WeightSync
from roll.errors import WorkerError

STORED_BYTES_PER_TOKEN = 40
"""Of a step: 13 as it was sampled, 13 in a rank's shard, and 4 for each score."""


class RLClusters(RunClusters):
    """The roles by the names that the step knows them by. `critic` and `reference` are None where the run has none;
    without a trainer, or without engines, there is no `weight_sync` (`mode`)."""

    weight_sync: WeightSync
    _config: AlgorithmConfig

    def __init__(self, config: AlgorithmConfig, plan: BatchPlan, on_lost: Callable[[WorkerError], None] | None = None):
        super().__init__(config, plan, on_lost, plan.samples_per_step * plan.trained_length * STORED_BYTES_PER_TOKEN)

    @property
    def actor_train(self) -> TrainCluster:
        return self.trainers["actor_train"]

    @property
    def actor_infer(self) -> GenerateCluster:
        return self.engines["actor_infer"]

    @property
    def critic(self) -> TrainCluster | None:
        return self.trainers.get("critic")

    @property
    def reference(self) -> ScoreCluster | None:
        return self.scorers.get("reference")

    def _take_replies(self, replies: Mapping[Occupant, list[Any]]) -> None:
        super()._take_replies(replies)
        if not self._config.samples or not self._config.learns:
            return
        trainer, engines = self.actor_train.cluster, self.actor_infer.cluster
        plan = plan_send(
            trainer.seats,
            self.actor_train.lead_rank,
            engines.seats,
            num_ranks=replies[self.actor_infer],
            route=self._config.weight_sync_route,
            directory=Path(self._config.output_dir).absolute() / "weight_sync",
        )
        self.weight_sync = WeightSync(trainer, engines, self._plan.bucket_bytes, plan)

    def publish_weights(self, version: int) -> int:
        """Brings the trained weights to all engines. Requests in flight go on afterwards: an engine stands still from
        the first to the last bucket that it reads. Engines that died take part again. Returns how many bytes of weights
        each engine got. Raises WorkerError if one cannot be brought back."""
        if self.actor_infer.heal():  # before the others stand still for it
            self.weight_sync.renew()
        self.weight_sync.publish_healing(version, self.actor_infer.heal)
        return self.weight_sync.sent_bytes

    def read_weights(self, directory: Path, version: int) -> int:
        """The same from the files of a saved model, without a trainer. Returns how many bytes they are."""
        self.actor_infer.heal()
        return FileWeights(self.actor_infer.cluster).publish_healing(directory, version, self.actor_infer.heal)

    def start_job_pool(
        self,
        role: str,
        settings: WorkerConfig,
        worker_class: str,
        arguments: tuple[Any, ...],
        jobs_per_worker: int,
        placed: Callable[[Any, Sequence[object]], Any],
    ) -> JobPool:
        """A pool of CPU workers for long jobs that sample on the way: a way to the engines is the last argument of
        each worker. `placed` as of JobPool."""

        def arguments_of(name: str) -> tuple[Any, ...]:
            return (*arguments, self.actor_infer.client(name))

        environment = {**self._config.system_envs, **settings.system_envs}
        place = self._plan.layout[role]
        pool = JobPool(
            role,
            self.resources,
            place,
            worker_class,
            arguments_of,
            jobs_per_worker,
            environment,
            on_gone=self.actor_infer.forget_client,
            placed=placed,
        )
        self._pools.append(pool)
        return pool
