"""`optimizer: kept`: the saved state of which role of an earlier stage each role that learns goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.saved_facts import SavedFacts, required_facts
from roll.errors import ConfigError
from roll.run.start.load import Loaded

STATE = "training_args.optimizer_from"


@dataclass(frozen=True)
class Kept:
    """The state of a role, in the last checkpoint of a stage."""

    stage: str
    role: str


def kept_states(loaded: Loaded, models: Mapping[str, str], earlier: Mapping[str, Loaded]) -> dict[str, Kept]:
    """Optimizer states of earlier stages, by the roles that learn. `models`: the stage whose model each role starts
    from; `earlier`: stages by name. A critic gets the state of the critic beside the policy, if there was one. Raises
    ConfigError if a policy, or another model that is handed over, cannot continue."""
    config, found, problems = loaded.config, dict[str, Kept](), list[str]()
    handed = [role for role in config.learning_roles if role in models and config.roles[role].head != "value"]
    if not handed:
        raise ConfigError("optimizer: kept, but nothing that learns here starts from the model of an earlier stage.")
    before = earlier.get(models[handed[0]])
    if before is None:  # it has problems of its own
        return {}
    for role, worker in config.learning_roles.items():
        head = config.roles[role].head
        others = before.config.learning_roles
        same = [name for name in others if before.config.roles[name].head == head]
        if not same and role in handed:
            problems.append(f"optimizer: kept, but {models[role]} trains nothing of the kind of {role}.")
        elif same:
            found[role] = Kept(models[handed[0]], same[0])
            saved = SavedFacts(_facts(before, same[0], others[same[0]]))
            if wrong := saved.disagreements(_facts(loaded, role, worker)):
                problems.append(
                    f"optimizer: kept, but the state of {same[0]} of {models[handed[0]]} is of {', '.join(wrong)} for "
                    f"{role}. Give both the same, or take a fresh optimizer."
                )
    if problems:
        raise ConfigError(*problems)
    return found


def _facts(loaded: Loaded, role: str, worker: WorkerConfig) -> dict[str, object]:
    return required_facts(worker, loaded.plan.trains[role].dp_size)
