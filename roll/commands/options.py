"""The options of the subcommands in this package: what `--help` shows, without the imports of the commands."""

import argparse
from pathlib import Path

from roll.configs.tables.presets import PRESETS
from roll.simulate.options import count, natural
from roll.utils.text import table

INIT_FILE, INIT_REWARD, INIT_MODEL = "my_run.yaml", "math_rule", "Qwen/Qwen2.5-0.5B-Instruct"
MAX_STEPS = 200
"""Number of steps after which check-env ends an episode."""
_EPILOG = (
    "Further arguments are overrides: key=value with a dotted key, such as "
    "actor_train.training_args.learning_rate=1e-6. All keys: docs/config_reference.md."
)
_DESCRIPTIONS = {
    "run": "Runs what a YAML says: a run of any kind, or several in stages.",
    "plan": "Checks a YAML and shows its plan. The exit code is 0 if the run would start on this machine. Needs no "
    "GPU.",
}


def spelled(word: str) -> str:
    """An option with dashes in its name as it is declared, with underscores.

    Example: --max-new-tokens=5 becomes --max_new_tokens=5.
    """
    name, sign, value = word.partition("=")
    is_option = name.startswith("--") and name[2:].replace("-", "").isalnum() and name[2:3].isalpha()
    return f"--{name[2:].replace('-', '_')}{sign}{value}" if is_option else word


def run_parser() -> argparse.ArgumentParser:
    parser = _yaml_parser("run")
    more = "restart from the newest checkpoint, up to N times without a new one; docs/resuming.md. Default: 0"
    parser.add_argument("--max_restarts", type=natural, default=0, metavar="N", help=more)
    return parser


def plan_parser() -> argparse.ArgumentParser:
    return _yaml_parser("plan")


def fork_parser() -> argparse.ArgumentParser:
    text = "Starts a new run from a checkpoint of another, with its weights, optimizer, data and random streams."
    parser = argparse.ArgumentParser(prog="roll fork", description=text, epilog=_EPILOG, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN[@STEP]", help="output_dir of a run; its newest checkpoint, or that of STEP")
    parser.add_argument("--out", metavar="DIR", help="output_dir of the new run; default: RUN-fork, beside it")
    parser.add_argument("--dry_run", action="store_true", help="show the plan; nothing is started")
    return parser


def why_parser() -> argparse.ArgumentParser:
    text = "Tests what the rules suspect: takes steps of a run again with one key changed. docs/health.md."
    parser = argparse.ArgumentParser(prog="roll why", description=text, epilog=_EPILOG, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="output_dir of a run")
    parser.add_argument("--steps", type=count, default=10, metavar="N", help="to take again; default: 10")
    parser.add_argument("--causes", type=natural, default=2, metavar="N", help="to test, the likeliest; default: 2")
    more = "with its own seed, and with N - 1 others, all from the start; default: 1"
    parser.add_argument("--seeds", type=natural, default=1, metavar="N", help=more)
    parser.add_argument("--plan", action="store_true", help="only print the commands")
    return parser


def bisect_parser() -> argparse.ArgumentParser:
    text = "Names the first thing that differs between two runs, step by step and stage by stage. docs/health.md."
    parser = argparse.ArgumentParser(prog="roll bisect", description=text, allow_abbrev=False)
    parser.add_argument("first", metavar="A", help="output_dir of a run")
    parser.add_argument("second", metavar="B", help="output_dir of another")
    return parser


def script_parser(pipeline: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=f"Runs the {pipeline} pipeline, or the stages of a YAML.", epilog=_EPILOG, allow_abbrev=False
    )
    parser.add_argument(
        "--config_path",
        default=".",
        help="folder of the YAML: absolute, or relative to the script or the current folder, the default",
    )
    parser.add_argument("--config_name", default=None, help="name of the YAML, without .yaml")
    _may_be_dry(parser)
    return parser


def _yaml_parser(word: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"roll {word}", description=_DESCRIPTIONS[word], epilog=_EPILOG, allow_abbrev=False
    )
    parser.add_argument("config", metavar="CONFIG.yaml", help="path of the YAML")
    _may_be_dry(parser)
    return parser


def _may_be_dry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="check, print the plan and stop; exit code 0 if the run would start on this machine, 2 if not",
    )
    parser.add_argument(
        "--elsewhere",
        action="store_true",
        help="plan for another machine: files and folders are not checked here",
    )
    parser.add_argument("--all", action="store_true", help="the whole plan: devices, batches, choices and memory")


def init_parser() -> argparse.ArgumentParser:
    text = "Writes a short commented YAML and shows its plan. Nothing is downloaded. docs/running.md."
    parser = argparse.ArgumentParser(prog="roll init", description=text, allow_abbrev=False)
    parser.add_argument("file", nargs="?", default=INIT_FILE, metavar="FILE.yaml", help=f"default: {INIT_FILE}")
    parser.add_argument(
        "--model", default=INIT_MODEL, help="a directory, a GGUF file or a hub id; default: %(default)s"
    )
    parser.add_argument("--data", metavar="FILE", help="prompts and reference answers: a file, or a hub data set")
    parser.add_argument("--env", metavar="ENVIRONMENT", help="an environment for an agent, in the place of data")
    parser.add_argument("--reward", help=f"a name of docs/rewards.md, or module:function; default: {INIT_REWARD}")
    parser.add_argument(
        "--gpus", type=natural, metavar="N", help="how many the run takes; default: all of this machine, 0: the CPU"
    )
    parser.add_argument("--prompt", default="", metavar="COLUMN", help="with the prompt; default: by its name")
    parser.add_argument(
        "--ground_truth", default="", metavar="COLUMN", help="with the reference answer; default: by its name"
    )
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    return parser


def eval_parser() -> argparse.ArgumentParser:
    text = (
        "Runs the YAML with mode: bench: its validation and eval_sets are run with the model of actor_infer, or with "
        "the policy of a checkpoint. Nothing is trained. The figures are those that the run itself would report for "
        "these weights; they go to <output_dir>/bench. docs/modes.md."
    )
    parser = argparse.ArgumentParser(prog="roll eval", description=text, epilog=_EPILOG, allow_abbrev=False)
    parser.add_argument("config", help="the YAML of the run")
    parser.add_argument("--checkpoint", help="a directory step_000050; true: the newest one of the run")
    parser.add_argument("--dry_run", action="store_true", help="check, print the plan and stop")
    parser.add_argument("--elsewhere", action="store_true", help="plan for another machine: files are not checked here")
    return parser


def explain_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll explain",
        description="Explains an algorithm: its formula and its settings.",
        epilog="\n".join(["names:", *(f"  {line}" for line in table((p.name, p.paper) for p in PRESETS.values()))]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", help="of an algorithm, as in `algorithm: NAME`")
    return parser


def check_env_parser() -> argparse.ArgumentParser:
    about = "Tests an environment against its contract, with random actions."
    parser = argparse.ArgumentParser(prog="roll check-env", description=about, allow_abbrev=False)
    parser.add_argument("env", help="package.module:Class, or the name of a shipped environment")
    parser.add_argument("settings", nargs="*", default=[], metavar="key=value", help="arguments of its constructor")
    parser.add_argument("--config_path", type=Path, default=Path(), help="folder of the YAML, if the class is there")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument(
        "--max_steps", type=int, default=MAX_STEPS, help="end an episode after N steps, as an env manager does"
    )
    return parser
