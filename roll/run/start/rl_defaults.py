"""Sizes and rates of reinforcement learning that a YAML leaves out: groups, lengths, batches, learning rates."""

import math
from collections.abc import Iterator

from roll.configs.load.chosen_values import Chosen, KeysInYaml, Machine, says_any
from roll.configs.plan.batch_plan import role_train_plan
from roll.configs.plan.derive import compares_within_groups
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.run.saving.model_files import num_parameters, read_model_config
from roll.run.start.device_defaults import computes_on_cpu
from roll.utils.text import counted, short

GROUP_SIZE = 8
LONGEST_PROMPT, LONGEST_RESPONSE, LONGEST_EPISODE = 1024, 2048, 4096
CPU_GROUPS, CPU_RESPONSE = 4, 128  # a step of a small model then takes about a minute
FULL_RATE, LORA_RATE, CRITIC_RATE = 1e-6, 1e-5, 1e-5
_SAMPLING = "actor_infer.generating_args"


def group_defaults(config: AlgorithmConfig, user_keys: KeysInYaml, machine: Machine) -> Iterator[Chosen]:
    """The size of a group where advantages compare rewards within it, which one sample could not."""
    key = config.batch_keys[1]
    if key in user_keys or not compares_in_groups(config):
        return
    answers = config.actor_infer.generating_args.num_return_sequences
    if answers is not None and not config.is_multi_turn:
        yield Chosen(key, answers, f"{_SAMPLING}.num_return_sequences says so", rolls=1)
    else:
        yield Chosen(key, GROUP_SIZE, f"{config.adv_estimator} compares rewards within a group", rolls=1)


def compares_in_groups(config: AlgorithmConfig) -> bool:
    if config.is_pure_opd:
        return False
    return config.estimator.needs_groups or compares_within_groups(config)


def cpu_defaults(config: AlgorithmConfig, user_keys: KeysInYaml, machine: Machine) -> Iterator[Chosen]:
    """The prompts of a step whose models are on CPUs."""
    key = config.batch_keys[0]
    if key not in user_keys and not config.is_multi_turn and computes_on_cpu(config, user_keys, machine):
        yield Chosen(key, CPU_GROUPS, "models are on CPUs", rolls=128)


def rate_defaults(config: AlgorithmConfig, user_keys: KeysInYaml, machine: Machine) -> Iterator[Chosen]:
    for name, worker in config.learning_roles.items():
        key = f"{name}.training_args.learning_rate"
        if key in user_keys:
            continue
        if config.roles[name].head == "value":
            yield Chosen(key, CRITIC_RATE, "a critic learns faster than a policy", rolls=5e-5)
        elif worker.model_args.has_lora:
            yield Chosen(key, LORA_RATE, "adapters alone are trained", rolls=5e-5)
        else:
            yield Chosen(key, FULL_RATE, "all weights are trained", rolls=5e-5)


def length_defaults(config: AlgorithmConfig, user_keys: KeysInYaml, machine: Machine) -> Iterator[Chosen]:
    """Lengths within the limits of model and engine."""
    if says_any(user_keys, "response_length", "sequence_length"):
        return
    limit, why = _limit(config)
    if config.is_multi_turn and "prompt_length" not in user_keys:
        length = LONGEST_EPISODE if limit is None else min(LONGEST_EPISODE, limit)
        yield Chosen("sequence_length", length, f"at most {LONGEST_EPISODE}, {why}")
        return
    prompt = config.prompt_length
    if "prompt_length" not in user_keys and limit is not None and limit // 2 < prompt:
        prompt = max(1, limit // 2)
        yield Chosen("prompt_length", prompt, f"half of what {why}", rolls=LONGEST_PROMPT)
    answer = config.actor_infer.generating_args.max_new_tokens
    if answer is not None and not config.is_multi_turn:
        yield Chosen("response_length", answer, f"{_SAMPLING}.max_new_tokens says so")
    elif limit is None or limit > prompt:
        on_cpu = computes_on_cpu(config, user_keys, machine)
        most = CPU_RESPONSE if on_cpu else LONGEST_RESPONSE
        length = most if limit is None else min(most, limit - prompt)
        why = "models are on CPUs" if on_cpu and length == most else f"at most {most}, {why}"
        yield Chosen("response_length", length, why)


def _limit(config: AlgorithmConfig) -> tuple[int | None, str]:
    """Most tokens of prompt and response together, with the reason."""
    model, _ = read_model_config(config.actor_infer.model_args)
    positions = (model or {}).get("max_position_embeddings")
    limits = {}
    if type(positions) is int and positions > 1 and not (model or {}).get("rope_scaling"):
        limits[positions] = f"the model has {positions} positions (max_position_embeddings)"
    if config.engine_length is not None:
        limits[config.engine_length] = f"the engine takes {config.engine_length} tokens"
    if limits:
        return min(limits), limits[min(limits)]
    return None, "as the model's limit is not known here" if model is None else "as the model names no limit"


def batch_defaults(config: AlgorithmConfig, user_keys: KeysInYaml, machine: Machine) -> Iterator[Chosen]:
    """Prompts of a step that split over the ranks, and one update of them all."""
    unit = math.lcm(*(_unit(config, user_keys, name) for name in config.learning_roles))
    groups, size, key = config.num_groups, config.group_size, "rollout_batch_size"
    if key not in user_keys and config.update_rounding == "whole" and groups * size % unit:
        step = unit // math.gcd(unit, size)
        groups = max(step, groups // step * step)
        yield Chosen(key, groups, f"its samples split over {unit} ranks and rows", rolls=128)
    for name in config.learning_roles:
        yield from _update_defaults(config, user_keys, name, groups * size)


def _unit(config: AlgorithmConfig, user_keys: KeysInYaml, name: str) -> int:
    """Samples of which an update of a role is a multiple, by what the YAML says."""
    args, plan = f"{name}.training_args", role_train_plan(config, name, config.learning_roles[name])
    micro = plan.micro_batch_size if f"{args}.per_device_train_batch_size" in user_keys else 1
    passes = plan.accumulation if f"{args}.gradient_accumulation_steps" in user_keys else 1
    return plan.dp_size * micro * passes


def _update_defaults(config: AlgorithmConfig, user_keys: KeysInYaml, name: str, samples: int) -> Iterator[Chosen]:
    args, plan = f"{name}.training_args", role_train_plan(config, name, config.learning_roles[name])
    micro_key, passes_key = f"{args}.per_device_train_batch_size", f"{args}.gradient_accumulation_steps"
    micro, ranks = plan.micro_batch_size, plan.dp_size
    passes = plan.accumulation if passes_key in user_keys else 1
    if micro_key not in user_keys:
        most = max(1, math.ceil(samples / (ranks * passes)))
        whole = config.update_rounding == "whole"
        fitting = [n for n in range(1, min(micro, most) + 1) if not whole or most % n == 0]
        if fitting and fitting[-1] != micro:
            micro = fitting[-1]
            yield Chosen(micro_key, micro, f"{samples} samples over {ranks} ranks split into it", rolls=8)
    wanted = math.ceil(samples / (micro * ranks))
    if passes_key not in user_keys and wanted != 1:
        yield Chosen(passes_key, wanted, "one update is made of a step's samples", rolls=1)


# Warnings about how fast a policy is changed: updates in a step, and learning rates.

MOST_UPDATES = 16  # a step
HIGHEST_RATES = {300_000_000: 1e-5, 100_000_000: 5e-5}  # of full training, by more parameters than; small models: any


def rate_warnings(config: AlgorithmConfig) -> Iterator[str]:
    if not config.has_training:
        return
    for role, worker in config.learning_roles.items():
        plan = role_train_plan(config, role, worker)
        if plan.updates_per_step > MOST_UPDATES:
            yield _updates_warning(plan)
        rate, args = worker.training_args.learning_rate, worker.model_args
        if rate <= min(HIGHEST_RATES.values()) or args.has_lora:
            continue
        size = num_parameters(args, config.roles[role].head or "lm") or 0
        highest = next((limit for least, limit in HIGHEST_RATES.items() if size > least), rate)
        if rate > highest:
            yield (
                f"{role}.training_args.learning_rate: {short(rate)} is high for training all of {size / 1e9:.2g} B "
                f"parameters, and may ruin the model. Most runs take 1e-6; stay at or below {short(highest)}."
            )


def _updates_warning(plan: TrainPlan) -> str:
    passes = plan.samples_per_step // (plan.micro_batch_size * plan.dp_size)
    least = math.ceil(passes * plan.epochs / MOST_UPDATES)
    fitting = next((count for count in range(least, passes) if passes % count == 0), passes)
    key = f"{plan.role}.training_args.gradient_accumulation_steps"
    counts = dict.fromkeys([fitting, passes] if plan.epochs <= MOST_UPDATES else [passes])
    ways = " or ".join(f"{count} ({counted(math.ceil(passes / count) * plan.epochs, 'update')})" for count in counts)
    epochs = " Lower ppo_epochs." if plan.epochs > MOST_UPDATES else ""
    return (
        f"{plan.role}: a step makes {plan.updates_per_step} updates, so the last ones learn from samples of a policy "
        f"that has moved far away. At most {MOST_UPDATES} are usual. Set {key} to {ways}.{epochs}"
    )
