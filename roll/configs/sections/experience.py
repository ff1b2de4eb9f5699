"""`experience`: where what is sampled waits until it is trained on, when the two are done by different processes."""

from collections.abc import Mapping
from typing import Any, Literal

from roll.configs.base import Settings, setting
from roll.configs.sections.data import Place
from roll.configs.tables.roles import Role


class ReuseConfig(Settings):
    """`experience.reuse`: groups that are trained on more than once."""

    enable: bool = setting(
        False, "Groups come back after a training, as long as max_staleness allows. Off: each is trained on once."
    )
    cooldown_s: float = setting(0.0, "Seconds for which a group rests after it was trained on.", ge=0)
    priority: Literal["linear_decay", "decay_limit_randomization"] = setting(
        "linear_decay",
        "Which groups a step takes, those with the highest number first. linear_decay: the version of the weights that "
        "sampled it - decay x the times it was trained on. decay_limit_randomization: the same plus noise, and at most "
        "use_limit times.",
    )
    decay: float = setting(2.0, "What each use takes from the priority.", ge=0)
    use_limit: int = setting(
        3, "With decay_limit_randomization: how often a group is trained on at most; 0: any.", ge=0
    )
    sigma: float = setting(0.0, "With decay_limit_randomization: deviation of the noise.", ge=0)


class ExperienceConfig(Settings):
    """`experience`: what mode explore writes and mode train reads."""

    dir: Place | None = setting(
        None,
        "Directory that both processes see: a file for each group, and weights for the explorer. Default: "
        "<output_dir>/experience.",
    )
    keep: bool = setting(False, "Groups stay after they are trained on; they are not trained on again for that.")
    keep_weights: int = setting(
        3, "Weights that are kept for the explorer, the newest ones; it reads the newest that is whole.", ge=2
    )
    read_timeout_s: float = setting(
        1800.0, "Seconds that a step waits for its groups before on_timeout holds; 0: for ever.", ge=0
    )
    on_timeout: Literal["wait", "partial", "fail"] = setting(
        "wait",
        "What to do with a step whose groups are late. wait: it says so and goes on waiting. partial: it trains on "
        "those that are there, one at least; late ones are trained on by the next steps, as long as max_staleness "
        "allows. fail: the run ends.",
    )
    reuse: ReuseConfig = setting({}, "Training on groups more than once.")


# `mode`: which parts of a run of reinforcement learning this process does, and what it starts for them.

Mode = Literal["both", "explore", "train", "bench"]

SAMPLES = frozenset({"both", "explore", "bench"})
"""Modes with engines and rewards."""
EXPLORES = frozenset({"both", "explore"})
"""Modes that sample what is trained on."""
LEARNS = frozenset({"both", "train"})
"""Modes that train."""
OTHER_SCHEDULES: Mapping[str, Mapping[str, str]] = {
    "explore": {"save": "never: it continues from experience.dir"},
    "train": {"validate": "never: the explorer does it"},
    "bench": {"validate": "once", "save": "never"},
}
"""Texts of the plan for modes that do not validate or save as their keys say."""

_PLACES = ("logging_dir", "profiler_output_dir", "rollout_dump_dir")


def is_started(role: Role, mode: Mode) -> bool:
    """Engines and what rewards answers belong to sampling; who learns, and the reference, to learning."""
    is_of_sampling = role.use == "generate" or role.head == "sequence"
    return mode in (SAMPLES if is_of_sampling else LEARNS)


def mode_directory(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tree with the places of a process that does a part of a run. One that does not learn reads the checkpoints of
    the run, and writes to a folder of its own in the run's, so that neither writes over the other.

    Example: output_dir ./output/math with mode bench: it writes to ./output/math/bench.
    """
    mode = tree.get("mode")
    if not isinstance(mode, str) or mode not in SAMPLES ^ LEARNS:
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
    """Return the folder of a mode for a folder of the run. `shared`: the run's output_dir.

    Example: ./out/logs of a run in ./out becomes ./out/bench/logs, /logs becomes /logs/bench.
    """
    inner = place.removeprefix(shared)
    return f"{shared}/{mode}{inner}" if inner.startswith("/") and place.startswith(shared) else f"{place}/{mode}"
