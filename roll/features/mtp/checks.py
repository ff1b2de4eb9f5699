"""`mtp_training_mode` of a policy: what it cannot do with it, before anything starts."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.problems import Problem
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import Feature
from roll.configs.strategies.table import feature_problem
from roll.configs.tables.families import FAMILIES, NUM_HEADS
from roll.configs.tables.features import FeaturePlugin

_FAMILIES = sorted(kind for kind, family in FAMILIES.items() if family.has_mtp_head)


def head_training_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what keeps a role that learns from training MTP heads."""
    worker, key = choice.worker, _key(choice)
    mode = worker.mtp_training_mode
    if mode is None or not worker.trains_prediction_head or not choice.role.learns:
        return
    if "mtp_training_mode" not in choice.role.reads:
        yield Problem(f"{key}: {mode}: heads are trained by actor_train alone. Remove it.", (key,))
        return
    if problem := feature_problem(choice, Feature.MTP_TRAINING, mode):
        yield problem
        return
    if worker.model_args.has_lora:
        other = f"{choice.role.name}.model_args.lora_target"
        text = f"{key}: {mode} with {other}: adapters do not train MTP heads. Set {key} to disabled"
        yield Problem(f"{text}, or remove {other}.", (key, other))


def head_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks MTP training against the model's config.json."""
    worker, key, name = choice.worker, _key(choice), f"{choice.role.name}.model_args.model_name_or_path"
    if not worker.trains_prediction_head or not choice.role.learns or "num_hidden_layers" not in model:
        return
    if model.get("model_type") not in _FAMILIES or model.get(NUM_HEADS) != 1:
        text = (
            f"{key}: {worker.model_args.model_name_or_path} is no model of {', '.join(_FAMILIES)} with {NUM_HEADS}: 1"
        )
        yield Problem(f"{text}. Set it to disabled.", (key, name))


def _key(choice: Choice) -> str:
    return f"{choice.role.name}.mtp_training_mode"


PLUGIN = FeaturePlugin(role_problems=head_training_problems, model_problems=head_model_problems)
