"""What the specs of the deepspeed strategies are asked."""

from collections.abc import Iterator

from roll.configs.cluster import WorkerConfig
from roll.configs.plan.parallel import parallel_sizes
from roll.configs.problems import Problem
from roll.configs.strategies.deepspeed_config import DeepSpeedFacts, deepspeed_problems, offloads_optimizer, zero_stage
from roll.configs.strategies.sequence_parallel import ranks_problems
from roll.configs.strategies.spec import Choice
from roll.configs.strategies.trainer_kinds import deepspeed_misfits
from roll.configs.training import EIGHT_BIT


def problems(choice: Choice) -> Iterator[Problem]:
    config = choice.worker.strategy_config
    yield from ranks_problems(choice)
    yield from deepspeed_misfits(choice.at, config)
    yield from deepspeed_problems(choice.role.name, config, facts_of(choice))
    args, dtype = choice.worker.training_args, choice.worker.model_args.dtype
    if choice.role.learns and args.optim == "muon" and (zero_stage(config) or dtype != "fp32"):
        key, stage = f"{choice.role.name}.training_args.optim", f"{choice.at}.zero_optimization.stage"
        text = f"{key}: muon needs whole matrices, and ZeRO and bf16 lay weights end to end in one row. Use fsdp2_train"
        yield Problem(f"{text}, or stage: 0 with model_args.dtype: fp32.", (key, stage, choice.name_key))
    if choice.role.learns and args.optim == EIGHT_BIT and offloads_optimizer(config):
        key, at = f"{choice.role.name}.training_args.optim", f"{choice.at}.zero_optimization.offload_optimizer"
        text = f"{key}: {EIGHT_BIT} computes on the GPU, and {at} keeps its states in host memory. Remove one of them."
        yield Problem(text, (key, at))
    if choice.worker.use_torch_compile and zero_stage(config) == 3:
        key, stage = f"{choice.role.name}.use_torch_compile", f"{choice.at}.zero_optimization.stage"
        text = f"{key}: true with {stage}: 3, which gathers the weights of every layer inside of what is compiled."
        yield Problem(f"{text} Use a lower stage, or an fsdp2 strategy.", (key, stage))


def facts_of(choice: Choice) -> DeepSpeedFacts:
    """What the role's DeepSpeed configuration must agree with."""
    worker, args = choice.worker, choice.worker.training_args
    if not choice.role.learns:
        return DeepSpeedFacts(worker.model_args.dtype)
    return DeepSpeedFacts(
        dtype=worker.model_args.dtype,
        micro_batch_size=args.per_device_train_batch_size,
        accumulation=args.gradient_accumulation_steps,
        dp_size=parallel_sizes(worker).data,
        max_grad_norm=choice.max_grad_norm,
    )


def saved_facts(facts: dict[str, object], worker: WorkerConfig, dp_size: int) -> dict[str, object]:
    """One file per rank, cut by the ZeRO stage. `dp_size` counts those that share sequences, too."""
    ranks = dp_size * worker.model_args.ulysses_size
    return facts | {"dp_size": ranks, "zero_stage": zero_stage(worker.strategy_config)}
