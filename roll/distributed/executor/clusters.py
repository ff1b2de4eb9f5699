"""All workers of one run: started from its settings and its plan, ended together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ray

from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.plan.engine_limits import answers_at_once
from roll.configs.plan.run_plan import RunPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.table import load_spec, spec_of
from roll.configs.tables.roles import Use
from roll.distributed.executor.blueprint import BatchLimits, Blueprint
from roll.distributed.executor.placement import Occupant, Placement
from roll.distributed.executor.pools.task_pool import TaskPool
from roll.distributed.executor.processes.cluster import Calls, Cluster, WorkerSpec
from roll.distributed.executor.processes.launch import RayRuntime
from roll.distributed.executor.processes.resource_manager import SHARES_GPUS, ResourceManager
from roll.distributed.executor.processes.worker_records import RecordReader
from roll.distributed.executor.roles import ScoreCluster, TrainCluster
from roll.distributed.executor.rollout.engines import (
    MAX_RESTARTS,
    ApartCluster,
    EngineRecovery,
    GenerateCluster,
    RecoverySettings,
)
from roll.distributed.executor.usage import RoleUsage, UsageRequest
from roll.distributed.executor.weights.sync import FileWeights, WeightSync, plan_send
from roll.errors import WorkerError
from roll.models.hub import MODEL_KEYS, fetch_models, local_model, with_directories
from roll.utils.imports import EXTERNAL_LIB
from roll.utils.worker_usage import TraceOptions

if TYPE_CHECKING:
    from roll.distributed.executor.pools.job_pool import JobPool

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=RunConfig)

_WORKERS: Mapping[Use, str] = {
    "train": "roll.distributed.executor.worker:TrainWorker",
    "score": "roll.distributed.executor.worker:ScoreWorker",
    "generate": "roll.distributed.executor.rollout.generate_worker:GenerateWorker",
}
_SHUTDOWN_TIMEOUT_S = 5


def _with_local_models(config: C) -> C:
    """The config with local model directories. On several nodes each worker asks the hub: it may not exist
    elsewhere."""
    if config.num_nodes > 1:
        return config
    models = [local_model(worker.model_args) for worker in config.model_roles.values()]
    names = [str(args.value(key)) for args in models for key in MODEL_KEYS if args.value(key) is not None]
    return with_directories(config, fetch_models(names))


class RunClusters:
    """The roles of a run that hold a model, their turns on shared devices, and pools of CPU workers."""

    placement: Placement

    def __init__(
        self,
        config: RunConfig,
        plan: RunPlan,
        on_lost: Callable[[WorkerError], None] | None = None,
        stored_bytes: int = 0,
    ):
        """`on_lost` is called, from a thread, when Ray itself dies. `stored_bytes`: of rows in its store at once."""
        self._config, self._plan = _with_local_models(config), plan
        self.trainers: dict[str, TrainCluster] = {}
        self.scorers: dict[str, ScoreCluster] = {}
        self.engines: dict[str, GenerateCluster] = {}
        self._clusters: list[Cluster] = []
        self._recoveries: list[EngineRecovery] = []
        self._pools: list[TaskPool | JobPool] = []
        logs = Path(config.logging_dir) / "workers"
        self.runtime = RayRuntime(config.network_interface, logs, on_lost, stored_bytes)
        self._records = RecordReader(self.runtime)
        try:
            self.resources = ResourceManager(
                config.num_nodes, config.num_gpus_per_node, config.network_interface, config.platform
            )
        except BaseException:
            self._records.close()
            self.runtime.shutdown()
            raise
        logger.info("Ray is up; starting the workers of %s", ", ".join(place.role for place in plan.layout.roles))
        try:
            self._launch()
        except BaseException:
            self.close()
            raise

    @property
    def config(self) -> RunConfig:
        """The settings as the workers get them, with directories in place of hub ids."""
        return self._config

    def wait_ready(self) -> None:
        """Returns when all models are loaded. Raises WorkerError if one worker cannot load its own."""
        self._take_replies(self.placement.finish_setup())
        for recovery in self._recoveries:
            recovery.watch()

    def _take_replies(self, replies: Mapping[Occupant, list[Any]]) -> None:
        for facade in (*self.trainers.values(), *self.scorers.values()):
            facade.finish_setup(replies[facade.cluster])

    def start_pool(self, role: str, settings: WorkerConfig, worker_class: str, arguments: tuple[Any, ...]) -> TaskPool:
        """A pool of workers for a role of the plan's layout; on devices they take turns like others."""
        environment = self._environment(settings)
        pool = TaskPool(role, self.resources, self._plan.layout[role], worker_class, arguments, environment)
        if pool.devices:
            self.placement.join(pool)
        self._pools.append(pool)
        return pool

    def ask_usage(self, request: TraceOptions) -> Callable[[], list[RoleUsage]]:
        """Asks what the roles did since this was asked last. What is returned waits for their answers."""
        question, learners = UsageRequest(self._clusters, request), {**self.scorers, **self.trainers}
        work = {role: learners[role].take_work() for role in learners}
        pools = [pool for pool in self._pools if isinstance(pool, TaskPool)]
        of_pools = [RoleUsage(pool.role, "cpu", pool.usage(request)) for pool in pools]
        roles = self._config.roles
        return lambda: [
            *(
                RoleUsage(role, roles[role].use, workers, work.get(role, {}))
                for role, workers in question.answers().items()
            ),
            *of_pools,
        ]

    def close(self) -> None:
        """Ends all processes. Engines get a moment to end theirs; workers that hang are killed all the same."""
        for recovery in self._recoveries:
            recovery.close()
        if self.runtime.is_lost:
            self.runtime.shutdown()
            return
        shutdowns = [ref for cluster in self._clusters for ref in cluster.start_all("shutdown").refs.values()]
        if shutdowns:  # of all: one that is dead must not cost the others their moment
            ray.wait(shutdowns, num_returns=len(shutdowns), timeout=_SHUTDOWN_TIMEOUT_S)
        for members in (*self._clusters, *self._pools):
            members.kill()
        for recovery in self._recoveries:
            recovery.join()  # what it still asked of Ray later would start another cluster
        self._clusters, self._pools = [], []
        self.resources.release()
        self._records.close()
        self.runtime.shutdown()

    def _launch(self) -> None:
        """Engines come last: on devices that are shared they take what the others leave."""
        roles = self._config.model_roles
        is_engine = {name: self._config.roles[name].use == "generate" for name in roles}
        for name in sorted(roles, key=lambda role: is_engine[role]):
            self._start(name, roles[name])
        models = (*self.trainers.values(), *self.scorers.values())
        setups: dict[Occupant, Callable[[], Calls]] = {facade.cluster: facade.start_setup for facade in models}
        setups |= {engines: engines.start_setup for engines in self.engines.values()}
        self.placement = Placement(tuple(setups), [self.engines[name] for name in self._plan.background])
        self.placement.start_setup(setups, one_by_one=self.resources.has_gpus)

    def _start(self, name: str, settings: WorkerConfig) -> None:
        match self._config.roles[name].use:
            case "train":
                limits = BatchLimits.for_scoring(settings), BatchLimits.for_training(settings, self._plan.trains[name])
                self.trainers[name] = TrainCluster(self._cluster(name, settings), *limits)
            case "score":
                self.scorers[name] = ScoreCluster(self._cluster(name, settings), BatchLimits.for_scoring(settings))
            case "generate":
                self.engines[name] = self._engines(name, settings)

    def _engines(self, name: str, settings: WorkerConfig) -> GenerateCluster:
        """Engines that die are replaced where others, or requests, can wait for it, and nobody waits for their GPUs."""
        layout, is_apart = self._plan.layout, self._config.roles[name].is_apart
        waits = is_apart or self._revives_engines
        facade = partial(
            ApartCluster if is_apart else GenerateCluster,
            room=self._answers_at_once(settings),
            leaves_whole=name in self._plan.leaving_whole,
            waits=waits,
        )
        on_shared_gpus = self.resources.has_gpus and layout.shares_devices(name)
        if on_shared_gpus or (len(layout[name].workers) == 1 and not waits):
            return facade(self._cluster(name, settings))
        cluster = self._cluster(name, settings, max_restarts=MAX_RESTARTS)
        needs_weights = not (is_apart or self._plan.fixed_weights)  # before it serves
        arguments = [(*arguments, needs_weights) for arguments in cluster.spec.arguments]
        recovery = EngineRecovery(cluster, RecoverySettings(cluster.spec.worker_class, arguments, needs_weights))
        self._recoveries.append(recovery)
        return facade(cluster, recovery=recovery)

    @property
    def _revives_engines(self) -> bool:
        """True if engines can serve again although all died: by weights that they load, or that this process sends."""
        return self._plan.fixed_weights

    def _answers_at_once(self, settings: WorkerConfig) -> int:
        return answers_at_once(self._plan.most_answers, settings, self.resources.has_gpus)

    def _environment(self, settings: WorkerConfig) -> dict[str, str]:
        variables = {**self._config.system_envs, **settings.system_envs}
        return (
            variables | {EXTERNAL_LIB: ",".join(self._config.external_lib)} if self._config.external_lib else variables
        )

    def _engine_environment(self, settings: WorkerConfig) -> dict[str, str]:
        spec, on_cpu = spec_of(settings.strategy_name), not self.resources.has_gpus
        directory = self.runtime.directory
        return spec.call_hook(spec.environment, dict, settings, on_cpu, directory) if spec.environment else {}

    def _cluster(self, name: str, settings: WorkerConfig, max_restarts: int = 0) -> Cluster:
        role, slots = self._config.roles[name], self.resources.slots(self._plan.layout[name])
        assert settings.strategy_name is not None and role.head is not None
        strategy_class = load_spec(settings.strategy_name).classes[role.use]
        most_answers = self._answers_at_once(settings)
        is_exact, adapter_rank = (False, None) if role.is_apart else (self._plan.exact, self._plan.adapter_rank)
        trainer = self._config.model_roles.get("actor_train")  # None: nobody sends adapters
        if is_exact and adapter_rank is not None and role.use == "generate" and trainer is not None:
            model_args = settings.model_args.with_adapters_of(trainer.model_args)
            settings = settings.model_copy(update={"model_args": model_args})
        blueprints = [
            Blueprint(
                role=name,
                rank=slot.rank,
                world_size=len(slots),
                local_rank=slot.local_rank,
                seed=self._config.seed,
                device=slot.platform.device_name(),
                strategy_class=strategy_class,
                settings=settings,
                plan=self._plan.trains.get(name),
                shares_devices=self._plan.layout.shares_devices(name),
                head=role.head,
                keeps_kv=self._plan.keeps_kv,
                adapter_rank=adapter_rank,
                reports_routes=self._plan.reports_routes,
                exact=is_exact,
                most_answers=most_answers,
                shows_pictures=self._plan.shows_pictures
                or (self._plan.validates_pictures and (role.use == "generate" or role.head == "sequence")),
            )
            for slot in slots
        ]
        is_engine = role.use == "generate"
        shares = self.resources.has_gpus and self._plan.layout.shares_devices(name)
        on_shared_gpus = {SHARES_GPUS: "1"} if shares else {}
        spec = WorkerSpec(
            worker_class=_WORKERS[role.use],
            arguments=[(blueprint, *([most_answers] if is_engine else [])) for blueprint in blueprints],
            system_envs={**self._engine_environment(settings), **self._environment(settings), **on_shared_gpus},
            is_async=is_engine,
            is_distributed=not is_engine,
            timeout_s=self._config.rpc_timeout,
            max_restarts=max_restarts,
        )
        cluster = Cluster(name, self.resources, slots, spec)
        self._clusters.append(cluster)
        return cluster


# The clusters of reinforcement learning: a policy that learns, engines that sample, and the way of its weights.

STORED_BYTES_PER_TOKEN = 40
"""Bytes of a token in a step: 13 as it was sampled, 13 in a rank's shard, and 4 for each score."""


class RLClusters(RunClusters):
    """The roles by the names that the step knows them by; None where the run, or this process (`mode`), has none."""

    weight_sync: WeightSync
    _config: AlgorithmConfig

    def __init__(self, config: AlgorithmConfig, plan: BatchPlan, on_lost: Callable[[WorkerError], None] | None = None):
        super().__init__(config, plan, on_lost, plan.samples_per_step * plan.trained_length * STORED_BYTES_PER_TOKEN)

    @property
    def _revives_engines(self) -> bool:
        return super()._revives_engines or self._config.has_training

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
        if not self._config.uses_engines or not self._config.has_training:
            return
        trainer, engines = self.actor_train.cluster, self.actor_infer.cluster
        plan = plan_send(
            trainer.slots,
            self.actor_train.lead_rank,
            engines.slots,
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
        """Brings the weights of a saved model to all engines, without a trainer. Returns how many bytes they are."""
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
        """A pool of CPU workers for long jobs that sample: a way to the engines is each worker's last argument."""
        from roll.distributed.executor.pools.job_pool import JobPool  # only where environments play

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
