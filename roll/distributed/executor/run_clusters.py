"""All workers of one run: started from the configuration and its plan, ended together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray

from roll.configs.algorithm import AlgorithmConfig
from roll.configs.cluster import WorkerConfig
from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.plan.run_plan import TrainPlan
from roll.configs.roles import Use
from roll.configs.strategies.table import spec_of
from roll.distributed.executor.blueprint import BatchLimits, Blueprint
from roll.distributed.executor.placement import Occupant, Placement
from roll.distributed.executor.pools.job_pool import JobPool
from roll.distributed.executor.pools.task_pool import TaskPool
from roll.distributed.executor.processes.cluster import Calls, Cluster, WorkerSpec
from roll.distributed.executor.processes.launch import RayRuntime
from roll.distributed.executor.processes.resource_manager import ResourceManager
from roll.distributed.executor.processes.suspension import SuspensionWatch
from roll.distributed.executor.roles import ScoreCluster, TrainCluster
from roll.distributed.executor.rollout.engine_recovery import MAX_RESTARTS, EngineRecovery, RecoverySettings
from roll.distributed.executor.rollout.generate_cluster import GenerateCluster
from roll.distributed.executor.weights.routes import plan_send
from roll.distributed.executor.weights.sync import WeightSync
from roll.distributed.strategy.table import strategy_class_path
from roll.errors import WorkerError

logger = logging.getLogger(__name__)

_EXECUTOR = "roll.distributed.executor"
_WORKERS: Mapping[Use, str] = {
    "train": f"{_EXECUTOR}.worker:TrainWorker",
    "score": f"{_EXECUTOR}.worker:ScoreWorker",
    "generate": f"{_EXECUTOR}.rollout.generate_worker:GenerateWorker",
}
_SHUTDOWN_TIMEOUT_S = 5


class RunClusters:
    """The roles of a run that hold a model, their turns on shared devices, and the way of the weights."""

    actor_train: TrainCluster
    actor_infer: GenerateCluster
    critic: TrainCluster | None
    reference: ScoreCluster | None
    placement: Placement
    weight_sync: WeightSync

    def __init__(self, config: AlgorithmConfig, plan: BatchPlan, on_lost: Callable[[WorkerError], None] | None = None):
        """`on_lost` is called, from a thread, when Ray itself dies: no wait on a worker would end then."""
        self._config, self._plan = config, plan
        self._clusters: list[Cluster] = []
        self._recovery: EngineRecovery | None = None
        self._pools: list[TaskPool | JobPool] = []
        self.runtime = RayRuntime(config.network_interface, Path(config.logging_dir) / "workers", on_lost)
        self._suspension = SuspensionWatch(config.suspend_timeout, self.runtime.vital)
        try:
            self.resources = ResourceManager(config.num_nodes, config.num_gpus_per_node, config.network_interface)
        except BaseException:
            self._suspension.close()
            self.runtime.shutdown()
            raise
        logger.info("Ray is up; starting the workers of %s", ", ".join(place.role for place in plan.layout.roles))
        try:
            self._launch()
        except BaseException:
            self.close()
            raise

    def wait_ready(self) -> None:
        """Returns when all models are loaded. Raises WorkerError if one worker cannot load its own."""
        replies = self.placement.finish_setup()
        for facade in self._scoring:
            facade.finish_setup(replies[facade.cluster])
        trainer, engines = self.actor_train.cluster, self.actor_infer.cluster
        plan = plan_send(
            trainer.seats,
            self.actor_train.lead_rank,
            engines.seats,
            num_ranks=replies[self.actor_infer],
            route=self._config.weight_sync_route,
            directory=Path(self._config.output_dir).absolute() / "weight_sync",
        )
        self.weight_sync = WeightSync(trainer, engines, self._config.model_update_buffer_size_mb << 20, plan)

    def publish_weights(self, version: int, pause: bool) -> None:
        """Brings the trained weights to all engines; with `pause`, requests are in flight that go on afterwards.
        Engines that died take part again. Raises WorkerError if one cannot be brought back."""
        rollout = self.actor_infer
        self._heal()  # before the others stand still for it
        if pause:
            rollout.pause()
            self._heal()
        self.weight_sync.publish_healing(version, rollout.heal)
        if pause:
            rollout.resume()

    def _heal(self) -> None:
        if self.actor_infer.heal():
            self.weight_sync.renew()

    def start_pool(self, role: str, settings: WorkerConfig, worker_class: str, arguments: tuple[Any, ...]) -> TaskPool:
        """A pool of workers for a role of the plan's layout; on devices they take turns like others."""
        environment = {**self._config.system_envs, **settings.system_envs}
        pool = TaskPool(role, self.resources, self._plan.layout[role], worker_class, arguments, environment)
        if pool.devices:
            self.placement.join(pool)
        self._pools.append(pool)
        return pool

    def start_job_pool(
        self,
        role: str,
        settings: WorkerConfig,
        worker_class: str,
        arguments: tuple[Any, ...],
        jobs_per_worker: int,
    ) -> JobPool:
        """A pool of CPU workers for long jobs that sample on the way: a way to the engines is the last argument of
        each worker."""

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
        )
        self._pools.append(pool)
        return pool

    def close(self) -> None:
        """Ends all processes. Engines get a moment to end theirs; workers that hang are killed all the same."""
        self._suspension.close()
        if self._recovery is not None:
            self._recovery.close()
        if self.runtime.is_lost:
            self.runtime.shutdown()
            return
        shutdowns = [ref for cluster in self._clusters for ref in cluster.start_all("shutdown").refs.values()]
        if shutdowns:  # of all: one that is dead must not cost the others their moment
            ray.wait(shutdowns, num_returns=len(shutdowns), timeout=_SHUTDOWN_TIMEOUT_S)
        for members in (*self._clusters, *self._pools):
            members.kill()
        if self._recovery is not None:
            self._recovery.join()  # what it still asked of Ray later would start another cluster
        self._clusters, self._pools = [], []
        self.resources.release()
        self.runtime.shutdown()

    def _launch(self) -> None:
        config, plan = self._config, self._plan
        self.actor_train = TrainCluster(
            self._cluster("actor_train", config.actor_train, plan.actor_train),
            BatchLimits.for_scoring(config.actor_train),
            BatchLimits.for_training(config.actor_train, plan.actor_train),
        )
        self.critic = self.reference = None
        if plan.critic is not None:
            assert config.critic is not None
            cluster = self._cluster("critic", config.critic, plan.critic)
            self.critic = TrainCluster(
                cluster, BatchLimits.for_scoring(config.critic), BatchLimits.for_training(config.critic, plan.critic)
            )
        if plan.needs_reference:
            assert config.reference is not None
            cluster = self._cluster("reference", config.reference)
            self.reference = ScoreCluster(cluster, BatchLimits.for_scoring(config.reference))
        self.actor_infer = self._engines(config.actor_infer)
        self._scoring = [c for c in (self.actor_train, self.critic, self.reference) if c is not None]
        setups: dict[Occupant, Callable[[], Calls]] = {each.cluster: each.start_setup for each in self._scoring}
        setups[self.actor_infer] = self.actor_infer.start_setup
        self.placement = Placement(tuple(setups))
        self.placement.start_setup(setups, one_by_one=self.resources.has_gpus)

    def _engines(self, settings: WorkerConfig) -> GenerateCluster:
        """Engines that die are replaced where others can go on meanwhile, and where nobody waits for their GPUs."""
        layout = self._plan.layout
        on_shared_gpus = self.resources.has_gpus and layout.shares_devices("actor_infer")
        if len(layout["actor_infer"].workers) == 1 or on_shared_gpus:
            return GenerateCluster(self._cluster("actor_infer", settings))
        cluster = self._cluster("actor_infer", settings, max_restarts=MAX_RESTARTS)
        arguments = [(*arguments, True) for arguments in cluster.spec.arguments]
        self._recovery = EngineRecovery(cluster, RecoverySettings(cluster.spec.worker_class, arguments))
        return GenerateCluster(cluster, self._recovery)

    def _engine_environment(self, settings: WorkerConfig) -> dict[str, str]:
        spec, on_cpu = spec_of(settings.strategy_name), not self.resources.has_gpus
        return dict(spec.ask(spec.environment, settings, on_cpu, self.runtime.directory))

    def _cluster(
        self, name: str, settings: WorkerConfig, plan: TrainPlan | None = None, max_restarts: int = 0
    ) -> Cluster:
        role, seats = self._config.roles[name], self.resources.seats(self._plan.layout[name])
        assert settings.strategy_name is not None and role.head is not None
        strategy_class = strategy_class_path(settings.strategy_name, role.use)
        blueprints = [
            Blueprint(
                role=name,
                rank=seat.rank,
                world_size=len(seats),
                local_rank=seat.local_rank,
                seed=self._config.seed,
                device="cuda:0" if seat.gpu_ids else "cpu",
                strategy_class=strategy_class,
                settings=settings,
                plan=plan,
                shares_devices=self._plan.layout.shares_devices(name),
                head=role.head,
            )
            for seat in seats
        ]
        is_engine = role.use == "generate"
        spec = WorkerSpec(
            worker_class=_WORKERS[role.use],
            arguments=[
                (blueprint, *([self._config.max_running_requests] if is_engine else [])) for blueprint in blueprints
            ],
            system_envs={**self._engine_environment(settings), **self._config.system_envs, **settings.system_envs},
            is_async=is_engine,
            is_distributed=not is_engine,
            timeout_s=self._config.rpc_timeout,
            max_restarts=max_restarts,
        )
        cluster = Cluster(name, self.resources, seats, spec)
        self._clusters.append(cluster)
        return cluster
