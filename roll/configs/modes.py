"""`mode`: which parts of a run of reinforcement learning this process does, and what it starts for them."""

from collections.abc import Mapping
from typing import Any, Literal

from roll.configs.roles import Role

Mode = Literal["both", "bench"]

SAMPLES: frozenset[str] = frozenset({"both", "bench"})
LEARNS: frozenset[str] = frozenset({"both"})

_PLACES = ("logging_dir", "profiler_output_dir", "rollout_dump_dir")


def is_started(role: Role, mode: Mode) -> bool:
    """Engines and what rewards answers belong to sampling; who learns, and the reference, to learning."""
    is_of_sampling = role.use == "generate" or role.head == "sequence"
    return mode in (SAMPLES if is_of_sampling else LEARNS)


def apart(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tree of a process beside a run: it reads that run's checkpoints, and writes to a folder of its own in that
    run's, so that neither writes over the other.

    Example: output_dir ./output/math with mode bench: it writes to ./output/math/bench.
    """
    mode = tree.get("mode")
    if mode not in SAMPLES - LEARNS:
        return tree
    shared = tree.get("output_dir") or f"./output/{tree.get('exp_name') or 'roll'}"
    checkpoints = tree.get("checkpoint_config") or {}
    if isinstance(checkpoints, Mapping) and not checkpoints.get("output_dir"):
        checkpoints = {**checkpoints, "output_dir": f"{shared}/checkpoints"}
    places = {key: _beside(str(tree[key]), str(shared), str(mode)) for key in _PLACES if tree.get(key)}
    return {**tree, **places, "output_dir": f"{shared}/{mode}", "checkpoint_config": checkpoints}


def _beside(place: str, shared: str, mode: str) -> str:
    """Example: ./out/logs of a run in ./out becomes ./out/bench/logs, /logs becomes /logs/bench."""
    inner = place.removeprefix(shared)
    return f"{shared}/{mode}{inner}" if inner.startswith("/") and place.startswith(shared) else f"{place}/{mode}"
