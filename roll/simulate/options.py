"""Options of `roll simulate` and `roll fit`, without the imports of the simulator."""

import argparse
from collections.abc import Callable
from pathlib import Path

DESCRIPTION = "Simulates a run on a virtual clock: the real scheduler, with models of engines, trainer and rewards."


def parser() -> argparse.ArgumentParser:
    """Options of the subcommand; what is left are overrides of the YAML."""
    about = f"{DESCRIPTION} Keys of the YAML are changed by key=value. docs/simulator.md."
    made = argparse.ArgumentParser(prog="roll simulate", description=about, allow_abbrev=False)
    made.add_argument("config", metavar="CONFIG.yaml", help="the YAML of the run")
    made.add_argument("--steps", type=_count, default=10, help="to play, after the first ones. Default: 10")
    made.add_argument("--seed", type=_natural, default=0)
    made.add_argument("--trace", type=Path, help="write a Chrome trace (chrome://tracing, ui.perfetto.dev) there")
    made.add_argument("--lengths", type=Path, help="rollouts/ of a run to take lengths from")
    made.add_argument(
        "--median_length", type=_at_least(1.0), help="of a log-normal response. Default: .134 of response_length"
    )
    made.add_argument("--spread_of_prompts", type=_at_least(0.0), default=0.75, help="sigma between groups")
    made.add_argument("--spread_of_answers", type=_at_least(0.0), default=0.58, help="sigma within a group")
    made.add_argument("--turns", type=_count, default=1, help="of an episode, each as long as a response")
    made.add_argument("--observation_tokens", type=_natural, default=0, help="before each turn but the first")
    made.add_argument("--delay_s", type=_at_least(0.0), default=0.0, help="median, of reward or environment")
    made.add_argument("--delay_spread", type=_at_least(0.0), default=0.5, help="sigma of its logarithm")
    made.add_argument("--reward_workers", type=_count, help="how many delays run at once. Default: all")
    return made


def fit_parser() -> argparse.ArgumentParser:
    about = "Searches the layout of an RL run that is fastest by its forecast and fits in memory. docs/forecast.md."
    made = argparse.ArgumentParser(prog="roll fit", description=about, allow_abbrev=False)
    made.add_argument("config", metavar="CONFIG.yaml", help="the YAML of the run")
    made.add_argument("--gpus", type=_natural, help="of a node. Default: the YAML's num_gpus_per_node; 0: the CPU")
    made.add_argument("--nodes", type=_count, help="default: the YAML's num_nodes")
    made.add_argument("--gpu", help="their name, such as H100. Default: gpu_name, or those of this machine")
    made.add_argument("--out", type=Path, help="write a YAML with the chosen keys, on top of CONFIG.yaml")
    return made


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _natural(text: str) -> int:
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is not at least 0")
    return value


def _at_least(least: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        if not least <= (value := float(text)) < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not at least {least:g}")
        return value

    return number
