"""Options of `roll simulate` and `roll fit`, without the imports of the simulator."""

import argparse
from pathlib import Path

from roll.utils.text import show


def parser() -> argparse.ArgumentParser:
    """Options of the subcommand; what is left are overrides of the YAML."""
    about = "Simulates a run on a virtual clock, with models of scheduler, engines and trainer."
    about += " Keys of the YAML are changed by key=value. docs/simulator.md."
    made = argparse.ArgumentParser(prog="roll simulate", description=about, allow_abbrev=False)
    made.add_argument("config", metavar="CONFIG.yaml", help="the YAML of the run")
    made.add_argument("--steps", type=count, default=10, help="to play, after the first ones. Default: 10")
    return made


def fit_parser() -> argparse.ArgumentParser:
    about = "Searches the layout of an RL run that is fastest by its forecast and fits in memory. docs/forecast.md."
    made = argparse.ArgumentParser(prog="roll fit", description=about, allow_abbrev=False)
    made.add_argument("config", metavar="CONFIG.yaml", help="the YAML of the run")
    made.add_argument("--gpus", type=natural, help="of a node. Default: the YAML's num_gpus_per_node; 0: the CPU")
    made.add_argument("--nodes", type=count, help="default: the YAML's num_nodes")
    made.add_argument("--gpu", help="their name, such as H100. Default: gpu_name, or those of this machine")
    made.add_argument("--out", type=Path, help="write a YAML with the chosen keys, on top of CONFIG.yaml")
    return made


def count(text: str, least: int = 1) -> int:
    """A whole number that an option names. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{show(text)} is no count: {least} or more")
    return int(text)


def natural(text: str) -> int:
    return count(text, 0)
