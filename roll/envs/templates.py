"""The user's prompt templates: which fields they may hold."""

from collections.abc import Mapping
from string import Formatter

OBSERVATIONS: tuple[str, ...] = ("observation", "current_observation", "state")
"""Names of what is seen now: ROLL's two forms, and its older YAMLs, call it differently."""
TRAJECTORY_FIELDS: tuple[str, ...] = (
    "turn_idx",
    *OBSERVATIONS,
    "actions_left",
    "max_response_length",
    "env_instruction",
)
STEP_FIELDS: tuple[str, ...] = (
    *TRAJECTORY_FIELDS,
    "current_step",
    "step_count",
    "history",
    "history_length",
)


def fields_of(template: str) -> list[str]:
    """The names between braces. Raises ValueError if braces do not match, or hold more than a name.

    Example: "Turn {turn_idx}: {observation}" -> ["turn_idx", "observation"].
    """
    found: list[str] = []
    for _, name, spec, conversion in Formatter().parse(template):
        if name is None:
            continue
        if spec or conversion or not name.isidentifier():
            field = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise ValueError(f"{{{field}}} is not a plain field; write {{{{ and }}}} for literal braces")
        found.append(name)
    return found


def fill(template: str, values: Mapping[str, object]) -> str:
    """The template with its fields filled in: names only, no attribute or item is looked up."""
    parts: list[str] = []
    for text, name, _, _ in Formatter().parse(template):
        parts.append(text)
        if name is not None:
            parts.append(str(values[name]))
    return "".join(parts)
