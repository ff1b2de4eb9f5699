"""`mtp_training_mode` of a policy: what it cannot do with it, before anything starts."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.problems import Problem
from roll.configs.strategies.spec import Choice
from roll.utils.text import show

NUM_HEADS = "num_nextn_predict_layers"  # of config.json

# Settings of megatron_train with which heads were not shown to train right, with the value that they have to have.
_UNPROVEN: Mapping[str, object] = {"pipeline_model_parallel_size": 1, "transformer_impl": "local"}


def head_training_problems(choice: Choice, trains_heads: bool, who_can: str) -> Iterator[Problem]:
    """Of a role that learns. `who_can`: strategies that train heads for further tokens."""
    worker, key = choice.worker, _key(choice)
    mode = worker.mtp_training_mode
    if not worker.trains_prediction_head:
        return
    if "mtp_training_mode" not in choice.role.reads:
        yield Problem(f"{key}: {mode}: heads are trained by actor_train alone. Remove it.", (key,))
        return
    if not trains_heads:
        text = f"{key}: {mode} with {worker.strategy_name}, which trains no heads for further tokens. Strategies that "
        yield Problem(f"{text}do: {who_can}. Or set it to disabled.", (key, choice.name_key))
        return
    if worker.model_args.has_lora:
        other = f"{choice.role.name}.model_args.lora_target"
        text = f"{key}: {mode} with {other}: adapters leave heads for further tokens as they are. Set {key} to disabled"
        yield Problem(f"{text}, or remove {other}.", (key, other))
    if worker.router_replay.is_on:
        other = f"{choice.role.name}.router_replay.mode"
        text = f"{key}: {mode} with {other}: {worker.router_replay.mode}, which knows no experts of the head's layer"
        yield Problem(f"{text}. Set one of them to {'disabled'} or disable.", (key, other))
    for setting, needed in _UNPROVEN.items():
        other, value = f"{choice.at}.{setting}", worker.strategy_config.get(setting, needed)
        if value != needed:
            text = f"{key}: {mode} with {other}: {show(value)}: heads train with {show(needed)} alone. Change it, or"
            yield Problem(f"{text} set {key} to disabled.", (key, other))


def head_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Of a model whose config.json is there."""
    if not choice.worker.trains_prediction_head or "num_hidden_layers" not in model:
        return
    key, name = _key(choice), f"{choice.role.name}.model_args.model_name_or_path"
    count, given = model.get(NUM_HEADS) or 0, choice.worker.model_args.model_name_or_path
    if count != 1:
        what = "no head" if not count else f"{show(count)} heads"
        text = f"{key}: {given} has {what} for further tokens ({NUM_HEADS}); models with one can be trained"
        yield Problem(f"{text}. Set it to disabled.", (key, name))
    changed = f"{choice.role.name}.model_args.model_config_kwargs"
    if "num_hidden_layers" in choice.worker.model_args.model_config_kwargs:
        text = f"{key}: {choice.worker.mtp_training_mode} with {changed}.num_hidden_layers: the head stands behind the"
        yield Problem(f"{text} layers that the files have. Remove one of them.", (key, changed))


def _key(choice: Choice) -> str:
    return f"{choice.role.name}.mtp_training_mode"
