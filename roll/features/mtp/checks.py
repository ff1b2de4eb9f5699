"""`mtp_training_mode` of a policy: what it cannot do with it, before anything starts."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from roll.configs.problems import Problem
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import Feature
from roll.configs.strategies.table import feature_problem
from roll.configs.tables.families import FAMILIES, NUM_HEADS
from roll.configs.tables.features import FeaturePlugin
from roll.utils.files import read_object

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


def head_warnings(choice: Choice) -> Iterator[str]:
    """Warns of a factor for an MTP loss that is off, in a role that could have one."""
    key, role, worker = "mtp_loss_scaling_factor", choice.role, choice.worker
    if key in role.reads and worker.is_changed(key) and not worker.trains_prediction_head:
        yield f"{role.name}.{key} does nothing without {role.name}.mtp_training_mode: standalone or joint."


def head_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks MTP training against the model's config.json."""
    worker, key = choice.worker, _key(choice)
    if not worker.trains_prediction_head or not choice.role.learns or "num_hidden_layers" not in model:
        return
    name, model_args, mode = (
        f"{choice.role.name}.model_args.model_name_or_path",
        worker.model_args,
        worker.mtp_training_mode,
    )
    if model.get("model_type") not in _FAMILIES or model.get(NUM_HEADS) != 1:
        text = f"{key}: {model_args.model_name_or_path} is no model of {', '.join(_FAMILIES)} with {NUM_HEADS}: 1"
        yield Problem(f"{text}. Set it to disabled.", (key, name))
        return
    changed = f"{choice.role.name}.model_args.model_config_kwargs"
    if "num_hidden_layers" in model_args.model_config_kwargs:
        text = f"{key}: {mode} with {changed}.num_hidden_layers: the head follows the layers of the files"
        yield Problem(f"{text}. Remove one of them.", (key, changed))
        return
    names, matrix = (
        _tensors(Path(str(model_args.model_name_or_path))),
        f"layers.{model['num_hidden_layers']}.eh_proj.weight",
    )
    if names and not any(each.endswith(matrix) for each in names):
        text = f"{key}: the files of {model_args.model_name_or_path} have no MTP head ({matrix})"
        yield Problem(f"{text}. Take files with one, or set it to disabled.", (key, name))


def _tensors(model: Path) -> Collection[str]:
    """Names of what the safetensors of a directory hold; none where that cannot be read, or it is no directory."""
    index, whole = model / "model.safetensors.index.json", model / "model.safetensors"
    try:
        if index.is_file():
            return read_object(index).get("weight_map", {})
        with whole.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return json.loads(file.read(size)) if size < whole.stat().st_size else ()
    except (OSError, ValueError):  # loading says what is wrong with it
        return ()


def _key(choice: Choice) -> str:
    return f"{choice.role.name}.mtp_training_mode"


PLUGIN = FeaturePlugin(
    role_problems=head_training_problems, role_warnings=head_warnings, model_problems=head_model_problems
)
