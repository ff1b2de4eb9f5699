"""The adapters that a role starts from, where they lie on this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

from roll.configs.checks.lora import other_form
from roll.configs.problems import Problem
from roll.configs.strategies.spec import Choice
from roll.utils.files import look_at
from roll.utils.hub import is_hub_id

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def adapter_problems(choice: Choice) -> Iterator[Problem]:
    """What peft would stumble over on every rank, before one starts."""
    args, place = choice.worker.model_args, choice.worker.model_args.adapter_name_or_path
    if not args.has_lora or place is None or is_hub_id(place):
        return
    key = f"{choice.role.name}.model_args.adapter_name_or_path"
    if not (look := look_at(place)).is_directory:
        why = look.why if look.kind in ("hidden", "impossible") else f"there is no adapter directory {place}"
        yield Problem(f"{key}: {why}. Correct the path, or give a hub id (owner/name).", (key,), "place")
        return
    lacking = [] if look_at(Path(place, CONFIG)).is_file else [CONFIG]
    if not any(look_at(Path(place, name)).is_file for name in WEIGHTS):
        lacking.append(WEIGHTS[0])
    if lacking:
        yield Problem(
            f"{key}: {place} holds no {' and no '.join(lacking)}, so it is no adapter of peft.", (key,), "place"
        )
        return
    try:
        saved = json.loads(Path(place, CONFIG).read_text())
    except (OSError, ValueError, RecursionError) as error:
        yield Problem(f"{key}: {place}/{CONFIG} cannot be read: {error}.", (key,))
        return
    why = other_form(saved, args) if isinstance(saved, dict) else f"has no settings in {CONFIG}. Choose another"
    if why is not None:
        yield Problem(f"{key}: {place} {why}.", (key,))
