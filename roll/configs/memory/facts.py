"""A role as the arithmetic sees it, from the configuration and its plan."""

from roll.configs.algorithm import AlgorithmConfig
from roll.configs.cluster import WorkerConfig
from roll.configs.memory.model_shape import ModelShape
from roll.configs.memory.parts import RoleFacts
from roll.configs.plan.batch_plan import BatchPlan, TrainPlan
from roll.configs.roles import Use


def role_facts(
    config: AlgorithmConfig,
    plan: BatchPlan,
    role: str,
    worker: WorkerConfig,
    use: Use,
    shape: ModelShape,
    gpu_bytes: float | None,
) -> RoleFacts:
    """`use`: what the role does. Of those that learn, the critic scores in every step, the policy only where old
    log-probs have a pass of their own; only the policy's weights are published."""
    learns = next(
        (train for train in (plan.actor_train, plan.critic) if train is not None and train.role == role), None
    )
    scores = use == "score" or (use == "train" and (shape.is_critic or plan.old_log_probs.source == "pass"))
    publishes = use == "generate" or (use == "train" and not shape.is_critic)
    return RoleFacts(
        worker=worker,
        shape=shape,
        use=use,
        num_ranks=worker.num_workers,
        shares_devices=plan.layout.shares_devices(role),
        score_tokens=_score_tokens(worker, plan.sequence_length) if scores else 0,
        train_tokens=_train_tokens(worker, learns, plan.sequence_length) if learns else 0,
        train=learns,
        gpu_bytes=gpu_bytes,
        bucket_bytes=config.model_update_buffer_size_mb << 20 if publishes else 0,
        most_answers=config.max_running_requests,
        longest=max(plan.sequence_length, plan.val_sequence_length),
    )


def _score_tokens(worker: WorkerConfig, longest: int) -> int:
    packing = worker.sequence_packing_args
    if worker.use_sequence_packing and packing.by_tokens:
        return packing.max_packed_sequence_length_forward or longest
    if worker.use_dynamic_batching_in_infer:
        return worker.max_tokens_per_microbatch_in_infer or longest
    return worker.infer_batch_size * longest


def _train_tokens(worker: WorkerConfig, train: TrainPlan, longest: int) -> int:
    packing = worker.sequence_packing_args
    if worker.use_sequence_packing and packing.by_tokens:
        return packing.max_packed_sequence_length_train or longest
    if worker.use_dynamic_batching_in_train:
        return worker.max_tokens_per_microbatch_in_train or longest
    return train.micro_batch_size * longest
