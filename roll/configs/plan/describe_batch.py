"""A step of reinforcement learning in words: its arithmetic, and where what it trains on comes from."""

from collections.abc import Iterator

from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.plan.derive import compares_vocabulary, needs_ref_log_probs, weighs_importance
from roll.configs.plan.describe import counted, update_sum, updates_in_run
from roll.configs.plan.run_plan import TrainPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.strategy import answers_at_once
from roll.configs.sections.teachers import MixConfig

_OLD = {
    "update": "from the update's own forward pass",
    "pass": "a pass of their own",
    "rollout": "those of the rollout engine",
}


def batch_rows(config: AlgorithmConfig, plan: BatchPlan) -> Iterator[tuple[str, ...]]:
    for train in plan.trains.values():
        yield train.role, f"{batch_sum(plan, train)}; {updates_in_run(config, train)}"
    if config.explores:
        yield "answers", answers_sum(config, plan)
    if config.estimator.needs_greedy and config.explores:
        yield "greedy", f"{plan.num_groups} further greedy responses, one per prompt, with which rewards are compared"
    if config.learns:
        yield "old log-probs", f"{_OLD[plan.old_log_probs.source]}: {plan.old_log_probs.reason}"
    yield from _ahead_rows(config, plan)
    if config.is_in_parts:
        other = "train trains on them" if config.explores else "explore samples them"
        yield "experience", f"{config.experience.storage_type} in {config.experience_dir}; mode: {other} there"
    if plan.needs_reference:
        who = "actor_train without its adapters: " if plan.policy_is_reference else ""
        hidden = ["hidden states for the whole vocabulary"] if compares_vocabulary(config) else []
        told = " and ".join([*(["log-probs"] if needs_ref_log_probs(config) else []), *hidden])
        yield "reference", f"{who}{told} in batches of {plan.reference_batch_size}"
    for role in config.taught:
        domains = ", ".join(domain for domain, teacher in config.teacher_of.items() if teacher == role)
        alone = ", and no reward" if config.is_pure_opd else ""
        yield role, f"advantage + {config.teacher_weight(role):g} x (log q - log p) of {domains}{alone}"
    yield from _mix_rows(config.mix, plan.actor_train.samples_per_update if config.learns else 0)
    for name, worker in config.model_roles.items():
        if config.roles[name].head == "sequence":
            yield name, f"scores whole answers after the rollout, in batches of {worker.infer_batch_size}"
    if plan.prompts_per_domain is None:
        yield "prompts", "domains as they occur in the data"
    else:
        yield "prompts", ", ".join(f"{count} of {domain}" for domain, count in plan.prompts_per_domain.items())


def _mix_rows(mix: MixConfig, samples: int) -> Iterator[tuple[str, str]]:
    counts = mix.rows_per_update(samples) if samples else {}
    for place, (name, count) in enumerate(counts.items()):
        found = count / (samples + sum(counts.values()))
        told = f"{count} of {name} beside {counted(samples, 'sample')} of an update: {found:.3f} of its rows"
        yield "" if place else "mix", f"{told} (share {mix.rows[name].share:g})"
    if counts:
        rise = f" after a rise of {counted(mix.warmup_steps, 'step')}" if mix.warmup_steps else ""
        goes = "falls" if mix.final_weight < mix.weight else "rises"
        ends = mix.decay_steps and mix.final_weight != mix.weight
        fall = f", {goes} to {mix.final_weight:g} in {counted(mix.decay_steps, 'step')}" if ends else ""
        weighs = " x p (1 - p) of each token" if mix.token_weights == "uncertain" else ""
        yield "", f"loss = (1 - w) x the policy's + w x the expert's{weighs}; w is {mix.weight:g}{rise}{fall}"


def _ahead_rows(config: AlgorithmConfig, plan: BatchPlan) -> Iterator[tuple[str, ...]]:
    bounds = plan.bounds
    if bounds.additional:
        yield "more", f"{bounds.additional} groups run as a reserve for dropped ones (max_additional_running_prompts)"
    if not bounds.ahead:
        return
    if bounds.unfinished != "carry":
        yield (
            "started",
            f"{bounds.num_groups + bounds.ahead} groups in a step (async_generation_ratio), the first count",
        )
        yield "", f"groups that still run then: {bounds.unfinished} (unfinished_groups)"
        return
    groups = (
        f"{bounds.capacity} groups in flight: those of {counted(bounds.sync_interval, 'step')} and {bounds.ahead} more"
    )
    yield "ahead", f"at most {groups} (async_generation_ratio: {config.async_generation_ratio:g})"
    yield "", f"no token is more than {counted(bounds.max_staleness, 'step')} old (max_staleness)"
    weight = config.train_infer_correction.is_weight
    if weighs_importance(config):
        limit = "" if weight.upper_bound is None else f", at most {weight.upper_bound:g}"
        yield "", f"loss weighted by p / p_engine per {weight.weight_type}{limit} (train_infer_correction.is_weight)"


def answers_sum(config: AlgorithmConfig, plan: BatchPlan) -> str:
    """What one engine has to do in a step, and how much of it at once.

    Example: "256 per engine in a step, 128 of them at once, 512 on GPUs (max_running_requests)"
    """
    each = -(-plan.samples_per_step // max(1, len(plan.layout["actor_infer"].workers)))
    name = config.actor_infer.strategy_name
    at_once, on_gpus = (answers_at_once(plan.most_answers, name, gpus) for gpus in (False, True))
    more = f", {on_gpus} on GPUs" if on_gpus != at_once else ""
    return f"{each} per engine in a step, {at_once} of them at once{more} (max_running_requests)"


def batch_sum(plan: BatchPlan, train: TrainPlan) -> str:
    """The step as one sum.

    Example: "32 prompts x 8 samples = 256 = 64 per update (16 x 2 x 2) x 4 updates"
    """
    samples = f"{plan.num_groups} prompts x {plan.group_size} samples = {plan.samples_per_step}"
    update = update_sum(train)
    text = f"{samples} = {update} x {counted(train.updates_per_epoch, 'update')}"
    if not train.splits_evenly:
        text = f"{samples} in {counted(train.updates_per_epoch, 'update')}, beside the {update} that is asked for"
    return text if train.epochs == 1 else f"{text} x {train.epochs} epochs = {train.updates_per_step} updates"
