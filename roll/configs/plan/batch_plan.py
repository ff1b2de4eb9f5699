"""All counts of a step of reinforcement learning, computed before any process exists."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from roll.configs.plan.derive import OldLogProbs, old_log_probs, sent_adapter_rank
from roll.configs.plan.run_plan import RunPlan, plan_layout, train_plan
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.problems import Problem
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.tables.roles import Role

# How many groups of trajectories may be under way, and how old they may grow.

Unfinished = Literal["carry", "drop", "defer"]


@dataclass(frozen=True)
class RolloutBounds:
    """`num_groups` are trained on in a step; `ahead` more may be under way; the weights are published after every
    `sync_interval` steps; no token is older than `max_staleness` steps when it is trained on. Raises ValueError where a
    step could wait for ever: what is under way has to fit into the steps that its age leaves it.

    `unfinished`: what becomes of the other groups when a step has its own. carry: they go on. drop: they are given up
    for good. defer: they are given up, and as soon as a step can be filled with such groups it plays these alone. With
    the latter two `ahead` groups more are started in every step, and none outlives it.

    `grace_s`: so long a step that could take its groups waits for older ones. `additional`: without staleness, so many
    more run from the start in case that others are dropped by the filter; what a step does not need starts again in the
    next one, so that no batch depends on time.

    Example: 8 groups a step that may be 1 step old: at most 16 under way.
    """

    num_groups: int
    ahead: int = 0
    sync_interval: int = 1
    max_staleness: int = 0
    unfinished: Unfinished = "carry"
    grace_s: float = 0.0
    additional: int = 0

    def __post_init__(self) -> None:
        if self.unfinished == "carry" and self.capacity > self.most:
            raise ValueError(
                f"{self.capacity} groups would be in flight, but only {self.most} can be trained on in time"
            )

    @property
    def capacity(self) -> int:
        """Groups that run, are finished, or are taken by a step and not yet published over.

        Example: 8 groups a step and 4 ahead: 12; published every second step: 20.
        """
        return self.sync_interval * self.num_groups + self.ahead

    @property
    def is_in_order(self) -> bool:
        """True if a step takes the first of the groups in the data that are kept, whatever finishes first."""
        return self.unfinished == "carry" and self.max_staleness == 0 and self.capacity == self.num_groups

    @property
    def alternates(self) -> bool:
        """True if no group outlives the step in which it runs: sampling and training take turns."""
        return self.unfinished != "carry" or self.is_in_order

    @property
    def most(self) -> int:
        """Groups that can be trained on before one is too old."""
        return (self.max_staleness + 1) * self.num_groups

    @property
    def leaves_groups(self) -> bool:
        """True if a step may end while groups of its own or of later steps run or wait."""
        return not self.is_in_order or self.additional > 0


def rollout_bounds(config: AlgorithmConfig) -> RolloutBounds:
    """Return the rollout bounds of a run. If no group runs ahead, a step has its own groups at any age of the weights,
    so the engines' versions are not checked. Raises ValueError as RolloutBounds does."""
    groups, ahead, grace_s = config.num_groups, groups_ahead(config), config.unfinished_grace_s
    if config.is_async:
        return RolloutBounds(groups, ahead, sync_interval(config), oldest_allowed(config), grace_s=grace_s)
    if config.unfinished_groups != "carry":
        return RolloutBounds(groups, ahead, unfinished=config.unfinished_groups, grace_s=grace_s)
    replaces = config.is_use_additional_prompts and not config.rollout_mock.replays
    return RolloutBounds(groups, additional=config.max_additional_running_prompts if replaces else 0)


def sync_interval(config: AlgorithmConfig) -> int:
    """Steps from one publish of the weights to the next."""
    return config.actor_train.model_update_frequency


def groups_ahead(config: AlgorithmConfig) -> int:
    """Example: async_generation_ratio: 0.5 of 5 groups a step are 3."""
    return ahead_by(config.async_generation_ratio, config.num_groups)


def ahead_by(ratio: float, num_groups: int) -> int:
    """Example: ahead_by(0.5, 5) == 3"""
    return math.ceil(round(ratio * num_groups, 6))


def oldest_allowed(config: AlgorithmConfig) -> int:
    """Steps that a token may be old. Example: weights of every second step and a ratio of 0.5: 2."""
    if config.max_staleness is not None:
        return config.max_staleness
    return least_staleness(config.async_generation_ratio, sync_interval(config))


def least_staleness(ratio: float, interval: int) -> int:
    """Steps that a token has to be allowed to be old. Example: least_staleness(0.5, 2) == 2"""
    return math.ceil(interval - 1 + ratio)


@dataclass(frozen=True, kw_only=True)
class BatchPlan(RunPlan):
    """All counts of a step of reinforcement learning."""

    bounds: RolloutBounds
    group_size: int
    prompt_length: int
    response_length: int
    val_prompt_length: int
    val_response_length: int
    needs_reference: bool
    policy_is_reference: bool
    reference_batch_size: int | None
    old_log_probs: OldLogProbs
    prompts_per_domain: Mapping[str, int] | None  # None: as the domains occur in the data

    @property
    def actor_train(self) -> TrainPlan:
        return self.trains["actor_train"]

    @property
    def critic(self) -> TrainPlan | None:
        return self.trains.get("critic")

    @property
    def num_groups(self) -> int:
        return self.bounds.num_groups

    @property
    def samples_per_step(self) -> int:
        return self.num_groups * self.group_size

    @property
    def sequence_length(self) -> int:
        return self.prompt_length + self.response_length

    @property
    def val_sequence_length(self) -> int:
        return self.val_prompt_length + self.val_response_length


def build_plan(config: AlgorithmConfig) -> BatchPlan:
    """The plan of a checked configuration."""
    trains = {name: role_train_plan(config, name, worker) for name, worker in config.learning_roles.items()}
    old = old_log_probs(config, role_train_plan(config, "actor_train", config.actor_train).updates_per_step)
    prompt, response, _ = config.lengths
    val_prompt, val_response, _ = config.val_lengths
    reference = config.actor_train if config.policy_is_reference else config.reference
    return BatchPlan(
        layout=plan_layout(config),
        trains=trains,
        scoring=frozenset(
            name for name in config.model_roles if _scores(config.roles[name], old, config.policy_is_reference)
        ),
        trained_length=config.trained_length,
        longest_row=config.longest_row,
        bucket_bytes=config.model_update_buffer_size_mb << 20,
        most_answers=config.max_running_requests,
        background=frozenset({"actor_infer"}) if config.is_async and config.uses_engines else frozenset(),
        leaving_whole=frozenset() if config.partial_gpu_mode else frozenset({"actor_infer"}),
        keeps_kv=config.kv_on_update == "keep",
        adapter_rank=sent_adapter_rank(config),
        exact=config.exact_log_probs,
        reports_routes=config.actor_train.router_replay.mode == "R3",
        fixed_weights=not (config.has_training or config.has_rollouts),
        bounds=rollout_bounds(config),
        group_size=config.group_size,
        prompt_length=prompt,
        response_length=response,
        val_prompt_length=val_prompt,
        val_response_length=val_response,
        needs_reference=config.needs_reference,
        policy_is_reference=config.policy_is_reference,
        reference_batch_size=reference.infer_batch_size if reference and config.needs_reference else None,
        old_log_probs=old,
        prompts_per_domain=prompts_per_domain(config),
    )


def _scores(role: Role, old: OldLogProbs, is_reference: bool) -> bool:
    """A critic scores in every step, the policy only where old log-probs have a pass of their own, or where it is the
    reference as well."""
    return role.use == "score" or (role.learns and (role.head == "value" or old.source == "pass" or is_reference))


def role_train_plan(config: AlgorithmConfig, role: str, worker: WorkerConfig) -> TrainPlan:
    """The plan of a role that learns; `updates_per_epoch` is rounded down when the batch does not divide (see
    `batch_problems`) and nothing else is said about it."""
    row = config.roles[role]
    waits = config.critic_warmup if row.head == "lm" and config.needs_critic else 0
    role_epochs = worker.ppo_epochs if "ppo_epochs" in row.reads else None
    return train_plan(
        config,
        role,
        worker,
        samples_per_step=config.num_groups * config.group_size,
        epochs=role_epochs or config.ppo_epochs,
        waits=waits,
        rounding=config.update_rounding,
    )


def prompts_per_domain(config: AlgorithmConfig) -> dict[str, int] | None:
    """Prompts of each domain in a step: the shares of domain_interleave_probs by largest remainder, summing to
    num_groups.

    Example: 32 groups at {math: .7, code: .3} are {math: 22, code: 10}.
    """
    if config.num_groups_per_domain is not None:
        return dict(config.num_groups_per_domain)
    shares = config.actor_train.data_args.domain_interleave_probs
    if shares is None:
        domains = list(config.domains)
        return {domains[0]: config.num_groups} if len(domains) == 1 else None
    total = sum(shares.values())
    exact = {domain: config.num_groups * share / total for domain, share in shares.items()}
    counts = {domain: math.floor(value) for domain, value in exact.items()}
    by_remainder = sorted(exact, key=lambda domain: counts[domain] - exact[domain])
    for domain in by_remainder[: config.num_groups - sum(counts.values())]:
        counts[domain] += 1
    return counts


def critic_warmup_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    """Checks the critic's warm-up against max_steps, once the number of steps is known."""
    if config.critic_warmup >= config.max_steps:
        yield Problem(
            f"critic_warmup: {config.critic_warmup} leaves no step in which the policy is trained, max_steps: "
            f"{config.max_steps}.",
            ("critic_warmup", "max_steps"),
        )


def batch_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    """Samples of a step that do not split into whole updates and have to, with the nearest values that do."""
    for role, worker in config.learning_roles.items():
        plan = role_train_plan(config, role, worker)
        if plan.rounding == "whole" and not plan.splits_evenly:
            yield _indivisible(config, plan)


def _indivisible(config: AlgorithmConfig, plan: TrainPlan) -> Problem:
    groups_key, size_key = config.batch_keys
    args = f"{plan.role}.training_args"
    samples, per_update, sequence = plan.samples_per_step, plan.samples_per_update, plan.sequence_size
    ranks = f"{plan.dp_size} data-parallel ranks"
    if sequence > 1:
        ranks += f", which are {plan.dp_size * sequence} / {plan.role}.model_args.ulysses_size {sequence}"
    step = math.lcm(per_update, config.group_size) // config.group_size
    return Problem(
        f"{plan.role}: a step has {config.num_groups} x {config.group_size} = {samples} samples ({groups_key}, "
        f"{size_key}), which do not split into updates of {per_update} ({args}.per_device_train_batch_size "
        f"{plan.micro_batch_size} x gradient_accumulation_steps {plan.accumulation} x {ranks}). "
        f"Set {groups_key} to a multiple of {step}, or make an update a divisor of {samples}.",
        (
            groups_key,
            size_key,
            f"{args}.per_device_train_batch_size",
            f"{args}.gradient_accumulation_steps",
            f"{plan.role}.device_mapping",
            f"{plan.role}.world_size",
            f"{plan.role}.model_args.ulysses_size",
            f"{plan.role}.strategy_args",
        ),
    )
