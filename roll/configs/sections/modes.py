"""`mode`: which parts of a run of reinforcement learning this process does, and what it starts for them."""

from collections.abc import Mapping
from typing import Any, Literal

from roll.configs.tables.roles import Role

Mode = Literal["both", "explore", "train", "bench"]

SAMPLES = frozenset({"both", "explore", "bench"})
"""Modes with engines and rewards."""
EXPLORES = frozenset({"both", "explore"})
"""Those that sample what is trained on."""
LEARNS = frozenset({"both", "train"})
"""Those that train."""
OTHER_SCHEDULES: Mapping[str, Mapping[str, str]] = {
    "explore": {"save": "never: it continues from experience.dir"},
    "train": {"validate": "never: the explorer does it"},
    "bench": {"validate": "once", "save": "never"},
}
"""What the plan says where a mode does not validate or save as its keys say."""

_PLACES = ("logging_dir", "profiler_output_dir", "rollout_dump_dir")


def is_started(role: Role, mode: Mode) -> bool:
    """Engines and what rewards answers belong to sampling; who learns, and the reference, to learning."""
    is_of_sampling = role.use == "generate" or role.head == "sequence"
    return mode in (SAMPLES if is_of_sampling else LEARNS)


def in_its_place(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tree with the places of a process that does a part of a run. One that does not learn reads the checkpoints of
    the run, and writes to a folder of its own in the run's, so that neither writes over the other.

    Example: output_dir ./output/math with mode bench: it writes to ./output/math/bench.
    """
    mode = tree.get("mode")
    if mode not in SAMPLES ^ LEARNS:
        return tree
    shared = tree.get("output_dir") or f"./output/{tree.get('exp_name') or 'roll'}"
    filled = {**tree, "experience": _filled(tree.get("experience"), "dir", f"{shared}/experience")}
    if mode in LEARNS:
        return filled
    filled["checkpoint_config"] = _filled(tree.get("checkpoint_config"), "output_dir", f"{shared}/checkpoints")
    filled |= {key: _beside(str(tree[key]), str(shared), str(mode)) for key in _PLACES if tree.get(key)}
    return {**filled, "output_dir": f"{shared}/{mode}"}


def _filled(section: Any, key: str, value: str) -> Any:
    section = {} if section is None else section
    return {**section, key: value} if isinstance(section, Mapping) and not section.get(key) else section


def _beside(place: str, shared: str, mode: str) -> str:
    """Example: ./out/logs of a run in ./out becomes ./out/bench/logs, /logs becomes /logs/bench."""
    inner = place.removeprefix(shared)
    return f"{shared}/{mode}{inner}" if inner.startswith("/") and place.startswith(shared) else f"{place}/{mode}"
