"""Options of `roll simulate` and `roll fit`, without the imports of the simulator."""

import argparse
from collections.abc import Callable
from pathlib import Path

DESCRIPTION = "Simulates a run on a virtual clock: the real scheduler, with models of engines, trainer and rewards."
EPILOG = "docs/simulator.md says what is modelled, what is not, and how to calibrate."


def parser() -> argparse.ArgumentParser:
    """Options of the subcommand; what is left are overrides of the YAML."""
    made = argparse.ArgumentParser(
        prog="roll simulate",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
    )
    commands = made.add_subparsers(dest="command", required=True)
    play = commands.add_parser("play", help="one schedule, compared with the synchronous one", allow_abbrev=False)
    search = commands.add_parser(
        "search", help="schedules for different splits of devices, ratios and staleness", allow_abbrev=False
    )
    calibrate = commands.add_parser(
        "calibrate", help="read costs from a run and write a calibration file", allow_abbrev=False
    )
    for command in (play, search):
        _add_yaml(command)
        _add_run(command)
        _add_lengths(command)
    play.add_argument("--trace", type=Path, help="write a Chrome trace (chrome://tracing, ui.perfetto.dev) there")
    search.add_argument("--ratios", type=_at_least(0.0), nargs="+", default=[0.0, 0.25, 0.5, 1.0, 2.0])
    search.add_argument("--train_shares", type=_share, nargs="+", default=[1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8])
    calibrate.add_argument("--run", type=Path, required=True, help="output_dir of a synchronous run")
    calibrate.add_argument("--train_devices", type=_count, default=1, help="of that run. Default: 1")
    calibrate.add_argument("--engines", type=_count, default=1, help="of that run. Default: 1")
    calibrate.add_argument("--out", type=Path, required=True, help="the calibration file")
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


def _add_yaml(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config_path", "--config-path", default=".", help="folder of the YAML")
    parser.add_argument("--config_name", "--config-name", help="name of the YAML; without one, the options below count")
    parser.add_argument("--pipeline", default="rlvr", help="rlvr, agentic, or package.module:SPEC")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calibration",
        type=Path,
        help="file that `calibrate` wrote. Default: the YAML's forecast, or imagined",
    )
    parser.add_argument("--groups", type=_count, help="per step. Default: the YAML's, or 128")
    parser.add_argument("--group_size", type=_count, help="responses of a group. Default: the YAML's, or 16")
    parser.add_argument("--devices", type=_count, help="of the run. Default: the YAML's, or 16")
    parser.add_argument("--train_devices", type=_count, help="of these; the others sample, with --shared all")
    parser.add_argument("--devices_per_engine", type=_count)
    parser.add_argument(
        "--shared",
        action=argparse.BooleanOptionalAction,
        help="all devices sample, and train in turns, or --train_devices of them do",
    )
    parser.add_argument("--async_generation_ratio", type=_at_least(0.0), help="steps that groups run ahead")
    parser.add_argument("--max_staleness", type=_natural, help="in steps. Default: as in a run")
    parser.add_argument("--unfinished", choices=("carry", "drop", "defer"), help="groups when a step has its own")
    parser.add_argument("--grace_s", type=_at_least(0.0), help="that a step waits for older groups")
    parser.add_argument("--max_running_requests", type=_count, help="responses in an engine at once")
    parser.add_argument("--steps", type=_count, default=10, help="to play, after the first ones. Default: 10")
    parser.add_argument("--seed", type=_natural, default=0)


def _add_lengths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lengths", type=Path, help="directory of rollouts/ or rollout_mock dumps to take lengths from"
    )
    parser.add_argument(
        "--median_length", type=_at_least(1.0), help="of a log-normal response. Default: .134 of the cap"
    )
    parser.add_argument("--spread_of_prompts", type=_at_least(0.0), default=0.75, help="sigma between groups")
    parser.add_argument("--spread_of_answers", type=_at_least(0.0), default=0.58, help="sigma within a group")
    parser.add_argument("--cap", type=_count, help="longest response. Default: the YAML's response_length, or 16384")
    parser.add_argument("--prompt_tokens", type=_natural, help="Default: half of the YAML's prompt_length, or 512")
    parser.add_argument("--turns", type=_count, default=1, help="of an episode, each as long as a response")
    parser.add_argument("--observation_tokens", type=_natural, default=0, help="before each turn but the first")
    parser.add_argument("--delay_s", type=_at_least(0.0), default=0.0, help="median, of reward or environment")
    parser.add_argument("--delay_spread", type=_at_least(0.0), default=0.5, help="sigma of its logarithm")
    parser.add_argument("--reward_workers", type=_count, help="how many delays run at once. Default: all")


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


def _share(text: str) -> float:
    if not 0 < (value := float(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value
