"""What any run's settings say against themselves: the section of each role, and where the roles are placed."""

from collections.abc import Iterator

from roll.configs.checks.batching import batching_problems, batching_warnings
from roll.configs.checks.mtp import head_warnings
from roll.configs.checks.switches import ROLE, switched_off
from roll.configs.load.aliases import ROLL_REWARDS, ROLL_WORKERS
from roll.configs.plan.layout import layout_problems
from roll.configs.plan.run_plan import RunPlan
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.run import RunConfig
from roll.configs.tables.roles import idle_keys
from roll.utils.allocator import expandable

SCHEDULE_KEYS = frozenset({"min_lr_ratio"})


def run_problems(config: RunConfig) -> Iterator[Problem]:
    for role, worker in config.model_roles.items():
        own = f"{role}.model_args.model_name_or_path"
        keys = (own, *config.roles[role].model_keys)
        if worker.model_args.model_name_or_path is None:
            yield Problem(
                f"{role} has no model: {keys[-1]} is missing. Set it to a directory or a hub id such as "
                "Qwen/Qwen2.5-0.5B.",
                keys,
            )
        yield from _training_problems(role, worker) if config.roles[role].learns else ()
        known = {*ROLL_WORKERS, *(ROLL_REWARDS if config.roles[role].is_apart else ())}
        if worker.worker_cls is not None and worker.worker_cls not in known:
            yield Problem(
                f"{role}.worker_cls: {worker.worker_cls} is not supported. Remove it; the strategy runs {role}.",
                (f"{role}.worker_cls",),
            )
        yield from batching_problems(config.roles[role], worker, config.trained_length, config.length_keys)
    if config.counts_epochs and not config.can_count_rows:
        yield Problem(
            "num_train_epochs: environments have no rows that epochs could count, but for roll_math and "
            "roll_qa. Set max_steps.",
            ("num_train_epochs", "max_steps"),
        )
    workers = config.model_roles
    yield from layout_problems(workers, config.num_nodes, config.num_gpus_per_node)


def _training_problems(role: str, worker: WorkerConfig) -> Iterator[Problem]:
    for flag, given in (("bf16", worker.training_args.bf16), ("fp16", worker.training_args.fp16)):
        if given and worker.model_args.dtype != flag:
            yield Problem(
                f"{role}.training_args.{flag}: true contradicts {role}.model_args.dtype: "
                f"{worker.model_args.dtype}. Remove {flag}.",
                (f"{role}.training_args.{flag}", f"{role}.model_args.dtype"),
            )
    unknown = set(worker.training_args.lr_scheduler_kwargs) - SCHEDULE_KEYS
    for key in sorted(unknown):
        path = f"{role}.training_args.lr_scheduler_kwargs.{key}"
        yield Problem(f"{path}: no schedule has such a setting. Known: {', '.join(SCHEDULE_KEYS)}.", (path,))


def run_warnings(config: RunConfig, plan: RunPlan) -> Iterator[str]:
    """What works, and may not be what was meant. Keys of roles that are not started are left to who says so."""
    for name, section in config.sections.items():
        role = config.roles[name]
        if (keys := idle_keys(section, role)) and (role.head is None or name in config.model_roles):
            yield f"{name}: {', '.join(keys)} {'does' if len(keys) == 1 else 'do'} nothing here: {role.reason}."
    for name, worker in config.model_roles.items():
        yield from batching_warnings(name, worker)
        yield from head_warnings(config.roles[name], worker)
        yield from switched_off(worker, ROLE, name)
    if "USE_MODELSCOPE" in config.system_envs and config.model_download_type is None:
        yield (
            "system_envs.USE_MODELSCOPE does nothing here: write model_download_type: MODELSCOPE for models from there."
        )
    for name, worker in config.model_roles.items():
        given = {**config.system_envs, **worker.system_envs}
        if (names := expandable(given)) and plan.layout.shares_devices(name):
            yield (
                f"{name}: expandable_segments is taken out of {names[0]} of system_envs: weights go to other roles on "
                "its GPUs by CUDA IPC, which containers refuse for such memory. Set it for roles that share no GPU."
            )
    for name, worker in config.learning_roles.items():
        args = worker.training_args
        if args.warmup_steps and args.warmup_ratio:
            yield (
                f"{name}.training_args.warmup_ratio does nothing: warmup_steps: {args.warmup_steps} says how long the "
                "warm-up is."
            )
    if config.num_train_epochs is not None and not config.counts_epochs:
        yield f"num_train_epochs: {config.num_train_epochs:g} does nothing here: max_steps: {config.max_steps} counts."
    if not config.counts_epochs:
        yield from schedule_warnings(plan)


def schedule_warnings(plan: RunPlan) -> Iterator[str]:
    """Warns of a warm-up that outlasts the run, once the number of steps is known."""
    for name, train in plan.trains.items():
        if train.warmup_updates >= train.total_updates > 0:
            yield (
                f"{name}.training_args: the warm-up of {train.warmup_updates} updates is not over when the run ends "
                f"after {train.total_updates}."
            )
