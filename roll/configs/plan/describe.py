"""A plan in words: the roles, who sits on which device, and the arithmetic of a step."""

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from roll.configs.load.chosen_values import Chosen
from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.plan.derive import compares_vocabulary, needs_ref_log_probs, weighs_importance
from roll.configs.plan.engine_limits import answers_limit, default_share, given_share, share_key
from roll.configs.plan.layout import Layout, RolePlace, parallel_sizes
from roll.configs.plan.run_plan import RunPlan, run_length
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.problems import ids_text
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.run import RunConfig
from roll.configs.sections.teachers import MixConfig
from roll.configs.tables.features import active
from roll.utils.text import counted, table


def describe(
    config: RunConfig,
    plan: RunPlan,
    batch: Iterable[tuple[str, ...]],
    algorithm: Iterable[tuple[str, ...]] = (),
    chosen: Iterable[Chosen] = (),
    models: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> str:
    """Everything a person checks before a run, in about 40 lines. `batch`: the rows about a step; `algorithm`: those
    about what it learns by; `chosen`: what roll chose for keys that the YAML leaves out; `models`: config.json of the
    roles whose model is on this machine."""
    features = (row for feature in active(config) for row in feature.plan_rows(config, plan, models))
    learning, choices = table(algorithm), table((choice.key, choice.described) for choice in chosen)
    roles, length = config.model_roles, run_length(config) if config.takes_steps else "no steps"
    sections = {
        f"{config.exp_name}: {length}, seed {config.seed}, output in {config.output_dir}": [],
        "Roles": table(_role_rows(plan.layout, roles, config.cpu_role_notes)),
        f"Devices: {_nodes(plan.layout)}": [
            *_device_lines(plan.layout),
            *_sharing_lines(plan.layout),
            *_staying_lines(plan),
            *_share_lines(plan.layout, roles),
        ],
        **({"Algorithm": learning} if learning else {}),
        "Batch": table([*batch, *_pack_rows(plan, roles), *features]),
        "Schedule": table(_schedule_rows(config, config.missing_validation)),
        **({"Chosen for this run, since the YAML does not set it": choices} if choices else {}),
    }
    return "\n".join(line for title, lines in sections.items() for line in (title, *(f"  {line}" for line in lines)))


_BRIEF = {
    **dict.fromkeys(("Roles", "Schedule", "Time", "Cost"), ""),
    "Algorithm": "algorithm|advantages|loss |learning rate|groups|lengths",
    "Batch": ".*per update",
    "Memory": "the peak on",
}
"""Rows of a section that a short plan shows, as a pattern of their beginning; of other sections it has the title."""


def brief(text: str) -> str:
    """The short plan: what roles there are, what is learnt in which batches, when, and how much memory is needed."""
    kept, pattern, lines = [], "", text.split("\n")
    for line in lines:
        if not line.startswith(" "):
            pattern = _BRIEF.get(line.partition(" ")[0].rstrip(":"), "$^")
            kept += [line] if not line.startswith("Chosen") else []
        elif re.match(f"  ({pattern})", line):
            kept.append(re.sub(" GB: .*", " GB", line))
    return "\n".join([*kept, f"{len(lines) - len(kept)} more lines with --all"])


def train_rows(config: RunConfig, plan: RunPlan) -> Iterator[tuple[str, ...]]:
    """Rows of the plan about roles that make one update in a step."""
    for train in plan.trains.values():
        yield train.role, f"{update_sum(train)}, an update in every step; {updates_in_run(config, train)}"
    yield "tokens", f"rows of at most {plan.trained_length}"


def update_sum(train: TrainPlan) -> str:
    """Example: "64 per update (16 x 2 x 2)": rows of a micro batch, passes, data-parallel ranks; "... x 4 / 2" where 2
    of 4 ranks share sequences; "32 pairs per update (8 x 2 x 2)"."""
    sequence = train.sequence_size
    ranks = f"{train.dp_size * sequence} / {sequence}" if sequence > 1 else str(train.dp_size)
    together = train.rows_together
    update, micro = train.samples_per_update // together, train.micro_batch_size // together
    return f"{update}{' pairs' * (together > 1)} per update ({micro} x {train.accumulation} x {ranks})"


def updates_in_run(config: RunConfig, train: TrainPlan) -> str:
    if config.counts_epochs:
        share = f"{train.warmup_ratio:.0%}" if train.warmup_ratio else str(train.warmup_updates)
        return "updates by the number of rows" + (f", {share} of them warm-up" if share != "0" else "")
    warmup = f", {train.warmup_updates} of them warm-up" if train.warmup_updates else ""
    return f"{counted(train.total_updates, 'update')} in the run{warmup}"


def _role_rows(
    layout: Layout, roles: Mapping[str, WorkerConfig], notes: Mapping[str, str]
) -> Iterator[tuple[str, ...]]:
    for place in layout.roles:
        worker = roles.get(place.role)
        if worker is None:
            processes = counted(len(place.workers), "process", "processes")
            yield place.role, notes.get(place.role, ""), processes, "CPU", "", ""
        else:
            args = worker.model_args
            runs = (worker.strategy_name or "", _workers(place, worker), _where(place))
            yield place.role, *runs, args.dtype, args.model_name_or_path or ""


def _workers(place: RolePlace, worker: WorkerConfig) -> str:
    sizes = parallel_sizes(worker)
    divided = {name: size for name, size in vars(sizes).items() if name != "data" and size > 1}
    parts = [f"{name.replace('_', ' ')} parallel {size}" for name, size in divided.items()]
    if worker.packs_rows:
        parts.append("rows packed")
    text = counted(len(place.workers), "worker")
    return f"{text} ({', '.join(parts)})" if parts else text


def _pack_rows(plan: RunPlan, roles: Mapping[str, WorkerConfig]) -> Iterator[tuple[str, ...]]:
    for role, worker in roles.items():
        if not worker.packs_rows:
            continue
        parts, train = [], plan.trains.get(role)
        if train is not None:
            rows, budget = train.micro_batch_size * train.accumulation, worker.packed_tokens_in_train
            most = -(-rows // max(1, budget // plan.trained_length)) if budget else train.accumulation
            size = f"up to {budget} tokens" if budget else f"{train.micro_batch_size} rows"
            parts.append(f"{size} in training, where {rows} rows of a rank are at most {counted(most, 'pack')}")
        if role in plan.scoring:
            budget = worker.packed_tokens_in_infer
            parts.append(f"{f'up to {budget} tokens' if budget else f'{worker.infer_batch_size} rows'} in scoring")
        yield "packs", f"{role}: {'; '.join(parts)}"


def _where(place: RolePlace) -> str:
    ids = [device for worker in place.workers for device in worker.devices]
    return f"{'device' if len(ids) == 1 else 'devices'} {ids_text(ids)}" if ids else "CPU"


def _nodes(layout: Layout) -> str:
    return f"{counted(layout.num_nodes, 'node')} x {layout.num_devices_per_node}"


def _device_lines(layout: Layout) -> list[str]:
    """One line per stretch of neighbouring devices with the same roles; long empty stretches are one line too, and so
    are nodes at the end that nothing uses."""
    rows: list[tuple[str, ...]] = []
    held = {place.role: place.device_ids for place in layout.roles}
    if not any(held.values()) and layout.num_nodes == 1:
        return ["none is used: all roles run on the CPU"]
    used = max((max(ids) for ids in held.values() if ids), default=-1) // layout.num_devices_per_node + 1
    for node in range(used):
        first = node * layout.num_devices_per_node
        stretches: list[tuple[list[int], tuple[str, ...]]] = []
        for device in range(first, first + layout.num_devices_per_node):
            names = tuple(role for role, ids in held.items() if device in ids)
            if stretches and stretches[-1][1] == names:
                stretches[-1][0].append(device)
            else:
                stretches.append(([device], names))
        for i, (devices, names) in enumerate(stretches):
            note = " (take turns)" if len(names) > 1 else ""
            rows.append((f"node {node}" if i == 0 else "", ids_text(devices), (", ".join(names) or "free") + note))
    if used < layout.num_nodes:
        rest = "" if used == layout.num_nodes - 1 else f"..{layout.num_nodes - 1}"
        rows.append((f"node {used}{rest}", "", "free"))
    return table(rows)


def _sharing_lines(layout: Layout) -> Iterator[str]:
    placed = [place for place in layout.roles if place.device_ids]
    for first, second, ids in layout.shared():
        yield f"{first} and {second} share {ids_text(ids)} and take turns"
    shared = {frozenset(pair[:2]) for pair in layout.shared()}
    for i, first in enumerate(placed):
        for second in placed[i + 1 :]:
            if frozenset((first.role, second.role)) not in shared:
                yield f"{first.role} and {second.role} are disjoint"


def _staying_lines(plan: RunPlan) -> Iterator[str]:
    """Yield lines about workers of background roles that continue while other roles have their turns."""
    for first, second, _ in plan.layout.shared():
        for role, other in ((first, second), (second, first)):
            if role not in plan.background:
                continue
            stay, total = plan.layout.apart(role, other), len(plan.layout[role].workers)
            if stay and role not in plan.leaving_whole:
                ids = ids_text([device for worker in stay for device in worker.devices])
                yield (
                    f"while {other} works, {len(stay)} of {counted(total, 'engine')} of {role} continue on {ids}, and "
                    "take over the responses of those that leave"
                )
            else:
                yield f"while {other} works, all engines of {role} leave, and continue their responses afterwards"


def _share_lines(layout: Layout, roles: Mapping[str, WorkerConfig]) -> Iterator[str]:
    for role, worker in roles.items():
        key = share_key(worker)
        if key is None or not layout[role].device_ids:
            continue
        shares = layout.shares_devices(role)
        for name, value in default_share(worker, shares).items():
            yield f"{role} takes {value:g} of each GPU ({name}, by default: it shares them)"
        if (share := given_share(worker)) is not None:
            yield f"{role} takes {share:g} of each GPU ({key.name})"


def _schedule_rows(config: RunConfig, missing_validation: str) -> Iterator[tuple[str, ...]]:
    times = ["at the start"] if config.validates_first else []
    times += [f"every {_steps(config.eval_steps)}", "at the end"] if config.eval_steps > 0 else []
    when = ", ".join(times) or "never"
    saves = f"every {_steps(config.save_steps)} and at the end" if config.save_steps > 0 else "never"
    rows = {
        "validate": f"never: there is no section {missing_validation}" if missing_validation else when,
        "save": saves,
        "track": ", ".join(config.track_with) or "nowhere",
    }
    yield from (rows | dict(config.other_schedule)).items()


def _steps(steps: int) -> str:
    return "step" if steps == 1 else f"{steps} steps"


# A step of reinforcement learning in words: its arithmetic, and where what it trains on comes from.

_OLD = {
    "update": "from the update's own forward pass",
    "pass": "a pass of their own",
    "rollout": "those of the rollout engine",
}


def batch_rows(config: AlgorithmConfig, plan: BatchPlan) -> Iterator[tuple[str, ...]]:
    for train in plan.trains.values():
        yield train.role, f"{batch_sum(plan, train)}; {updates_in_run(config, train)}"
    if config.has_rollouts:
        yield "responses", answers_sum(config, plan)
    if config.estimator.needs_greedy and config.has_rollouts:
        yield "greedy", f"{plan.num_groups} further greedy responses, one per prompt, with which rewards are compared"
    if config.has_training:
        yield "old log-probs", f"{_OLD[plan.old_log_probs.source]}: {plan.old_log_probs.reason}"
    if config.has_training and config.policy_form.passes_before_updates and plan.old_log_probs.source != "update":
        yield "present log-probs", f"by one more pass before each update, as pg_variant {config.policy_form.name} asks"
    if config.has_training and plan.old_log_probs.halves:
        yield "baselines", "of each token, by one more pass at half the temperature"
    yield from _async_rows(config, plan)
    if config.is_in_parts:
        other = "train trains on them" if config.has_rollouts else "explore samples them"
        yield "experience", f"{config.experience_dir}; mode: {other} there"
    if plan.needs_reference:
        who = "actor_train without its adapters: " if plan.policy_is_reference else ""
        hidden = ["hidden states for the whole vocabulary"] if compares_vocabulary(config) else []
        what = " and ".join([*(["log-probs"] if needs_ref_log_probs(config) else []), *hidden])
        yield "reference", f"{who}{what} in batches of {plan.reference_batch_size}"
    for role in config.taught:
        domains = ", ".join(domain for domain, teacher in config.teacher_of.items() if teacher == role)
        alone = ", and no reward" if config.is_pure_opd else ""
        share = 1 - config.opd_js_weight
        is_js = config.opd_advantage == "js_divergence"
        what = f"{share:g} x (log m - log p)" if is_js else "(log q - log p)"
        yield role, f"advantage + {config.teacher_weight(role):g} x {what} of {domains}{alone}"
    yield from _mix_rows(config.mix, plan.actor_train.samples_per_update if config.has_training else 0)
    for name, worker in config.model_roles.items():
        if config.roles[name].head == "sequence":
            yield name, f"scores whole responses after the rollout, in batches of {worker.infer_batch_size}"
    if plan.prompts_per_domain is None:
        yield "prompts", "domains as they occur in the data"
    else:
        yield "prompts", ", ".join(f"{count} of {domain}" for domain, count in plan.prompts_per_domain.items())


def _mix_rows(mix: MixConfig, samples: int) -> Iterator[tuple[str, str]]:
    counts = mix.rows_per_update(samples) if samples else {}
    for place, (name, count) in enumerate(counts.items()):
        fraction = count / (samples + sum(counts.values()))
        text = f"{count} of {name} beside {counted(samples, 'sample')} of an update: {fraction:.3f} of its rows"
        yield "" if place else "mix", f"{text} (share {mix.rows[name].share:g})"
    if counts:
        rise = f" after a rise of {counted(mix.warmup_steps, 'step')}" if mix.warmup_steps else ""
        goes = "falls" if mix.final_weight < mix.weight else "rises"
        ends = mix.decay_steps and mix.final_weight != mix.weight
        fall = f", {goes} to {mix.final_weight:g} in {counted(mix.decay_steps, 'step')}" if ends else ""
        weighs = " x p (1 - p) of each token" if mix.token_weights == "uncertain" else ""
        yield "", f"loss = (1 - w) x the policy's + w x the expert's{weighs}; w is {mix.weight:g}{rise}{fall}"


def _async_rows(config: AlgorithmConfig, plan: BatchPlan) -> Iterator[tuple[str, ...]]:
    bounds = plan.bounds
    if bounds.additional:
        yield "more", f"{bounds.additional} groups run as a reserve for dropped ones (max_additional_running_prompts)"
    if not bounds.ahead:
        return
    if bounds.unfinished != "carry":
        groups = bounds.num_groups + bounds.ahead
        yield "started", f"{groups} groups in a step (async_generation_ratio), the first count"
        yield "", f"groups that still run then: {bounds.unfinished} (unfinished_groups)"
        return
    steps = counted(bounds.sync_interval, "step")
    groups = f"at most {bounds.capacity} groups in flight: those of {steps} and {bounds.ahead} more"
    yield "ahead", f"{groups} (async_generation_ratio: {config.async_generation_ratio:g})"
    yield "", f"no token is more than {counted(bounds.max_staleness, 'step')} old (max_staleness)"
    weight = config.train_infer_correction.is_weight
    if weighs_importance(config):
        limit = "" if weight.upper_bound is None else f", at most {weight.upper_bound:g}"
        yield "", f"loss weighted by p / p_engine per {weight.weight_type}{limit} (train_infer_correction.is_weight)"


def answers_sum(config: AlgorithmConfig, plan: BatchPlan) -> str:
    """Describe how many responses one engine samples in a step, and how many of them at once.

    Example: "256 per engine in a step, 128 of them at once, 512 on GPUs (max_running_requests)"
    """
    each = -(-plan.samples_per_step // max(1, len(plan.layout["actor_infer"].workers)))
    on_cpu, on_gpus = (answers_limit(plan.most_answers, config.actor_infer, gpus) for gpus in (False, True))
    at_once, key = on_cpu if config.platform == "cpu" else on_gpus
    numbers = f"{at_once} of them at once"
    if config.platform == "auto" and on_cpu[0] != at_once:
        numbers = f"{on_cpu[0]} of them at once, {at_once} on GPUs"
    by = f"actor_infer's {key}" if key else "max_running_requests"
    return f"{each} per engine in a step, {numbers} ({by})"


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
