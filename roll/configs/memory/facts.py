"""A role as the arithmetic sees it, from the plan of its run."""

from roll.configs.memory.model_shape import ModelShape
from roll.configs.memory.parts import RoleFacts
from roll.configs.plan.run_plan import RunPlan, TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.strategy import answers_at_once
from roll.configs.tables.roles import Role


def role_facts(
    plan: RunPlan, role: Role, worker: WorkerConfig, shape: ModelShape, gpu_bytes: float | None
) -> RoleFacts:
    """Facts about a role that the memory formulas read. Among training roles, only a policy publishes weights."""
    learns = plan.trains.get(role.name)
    publishes = (role.use == "generate" and not role.is_apart) or (role.learns and not shape.is_critic)
    return RoleFacts(
        worker=worker,
        shape=shape,
        use=role.use,
        num_ranks=worker.num_workers,
        shares_devices=plan.layout.shares_devices(role.name),
        score_tokens=_share(worker, _score_tokens(worker, plan.trained_length)) if role.name in plan.scoring else 0,
        train_tokens=_share(worker, _train_tokens(worker, learns, plan.trained_length)) if learns else 0,
        train=learns,
        gpu_bytes=gpu_bytes,
        bucket_bytes=plan.bucket_bytes if publishes else 0,
        most_answers=answers_at_once(plan.most_answers, worker.strategy_name, on_gpus=True),
        longest=0 if role.is_apart else plan.longest_row,
    )


def _share(worker: WorkerConfig, tokens: int) -> int:
    """Tokens of one rank, if several ranks share every sequence."""
    return -(-tokens // worker.model_args.ulysses_size)


def _score_tokens(worker: WorkerConfig, longest: int) -> int:
    if tokens := worker.packed_tokens_in_infer:
        return tokens
    if worker.use_dynamic_batching_in_infer:
        return worker.max_tokens_per_microbatch_in_infer or longest
    return worker.infer_batch_size * longest


def _train_tokens(worker: WorkerConfig, train: TrainPlan, longest: int) -> int:
    if tokens := worker.packed_tokens_in_train:
        return tokens
    if worker.use_dynamic_batching_in_train:
        return worker.max_tokens_per_microbatch_in_train or longest
    return train.micro_batch_size * longest
