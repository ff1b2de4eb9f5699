"""The command of a shell script, read and never run: its variables, arrays, sums, functions, and what tests decide.

What only a shell could say - other programs' output, arguments of the script, whether a file is there - stays open.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise, takewhile
from pathlib import Path
from typing import Any, Literal

from roll.errors import ConfigError
from roll.importers.shell.commands import Branches, Walk
from roll.importers.shell.quoted_parts import Damaged
from roll.importers.shell.state import State, opened
from roll.importers.shell.syntax_tree import Node, Steps, TreeReader

_OVERRIDE = re.compile(r"(\+{0,2}|~)[A-Za-z_]\w*(\.[\w-]+)*=.*|~[A-Za-z_]\w*(\.[\w-]+)+", re.DOTALL)
_OUTPUT = re.compile(r"\$\((?!\()|(?<!`)`[^`]+`(?!`)")
_STAMP = r"(?:\$\(date\b[^()`]*\)|`date\b[^`]*`)"
_DATE = re.compile(rf"(?:^|(?<=/))(?:{_STAMP}[-_.]?)+/?|[-_.]?{_STAMP}")
_VARIABLE = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{(?!oc\.)[^{}]*\}|\$\d")
_OPEN = re.compile(r"\$(\d|\(|\{|`)|`")
ANOTHER_COMMAND = "Not imported, another command: "
_CONFIG = re.compile(r"--config[-_](name|path)(=|$)|-cn$")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)+|\S+\.py")
_MOST_SHOWN = 5
_SIZES = ("--nproc-per-node", "--nnodes")
_MOST_WALKS = 12  # through branches that are not decided
_MOST_BYTES = 1 << 20
_READ_ON = (
    "As it is read here, the script ends at an exit before its command: one of its tests looks for what only a run "
    "finds. It is read as if the test had passed."
)

_CUT_OFF = (
    "The line of `{}` lacks its backslash: to the shell, the key=value words behind it are another command, which "
    "fails. They are read as words of this one."
)


@dataclass(frozen=True)
class Command:
    """`program` are the words before the first override, such as python3, -m, verl.trainer.main_ppo; `flags` the
    words that begin with a dash, `others` what is neither. `stray`: key=value words that begin a line of their own,
    which to a shell are another command: most often the line before lacks its backslash."""

    program: tuple[str, ...]
    overrides: tuple[str, ...]
    flags: tuple[str, ...]
    others: tuple[str, ...]
    notes: tuple[str, ...]
    stray: tuple[str, ...] = ()
    trainings: tuple[str, ...] = ()
    """How each of several commands of the same program differs from this one, in their order."""
    chosen: int = 0
    """The place of this one among them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the script gives its program."""
    runs: Literal["all", "some", "one"] = "all"
    """How many of them the script runs: tests that nothing here decides may choose."""
    perhaps: tuple[str, ...] = ()
    """Further key=value words that it has if a test that nothing here decides goes another way."""
    unread: tuple[str, ...] = ()
    """Variables that were given, and that the script does not read, or sets before it reads them."""

    def flag(self, *names: str) -> str | None:
        """The value of --name=value or --name value."""
        words = [*self.program, *self.flags, *self.others]
        for i, word in enumerate(words):
            name, equals, value = word.lstrip("-").partition("=")
            if word.startswith("--") and name.replace("_", "-") in names:
                return value if equals else next(iter(words[i + 1 : i + 2]), None)
        return None

    def short_flag(self, name: str) -> str | None:
        """The word behind a flag of one dash."""
        words = [*self.program, *self.flags, *self.others]
        return next((words[i + 1] for i, word in enumerate(words[:-1]) if word == name), None)


def is_open(value: object) -> bool:
    """True for a text in which the script leaves something to the shell, alone or in a list."""
    if isinstance(value, list):
        return any(map(is_open, value))
    return isinstance(value, str) and _OPEN.search(value.replace("${oc.env:", "")) is not None


def is_reference(value: object) -> bool:
    """True for a text that is one variable whose value only the shell knows."""
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def is_output(value: object) -> bool:
    """True for a text with the output of a program that is not run, alone or in a list. A template of Jinja has none,
    nor has a block of code between three backticks."""
    if isinstance(value, list):
        return any(map(is_output, value))
    return isinstance(value, str) and not re.search(r"\{[{%]", value) and _OUTPUT.search(value) is not None


def undated(value: Any) -> Any:
    """The same without dates of the start, unless nothing else stands there. Example: "x-$(date +%m%d)" is "x"."""
    rest = _DATE.sub("", value) if isinstance(value, str) else value
    return rest or value


def unbraced(value: Any) -> Any:
    """The same as a text that no YAML takes for a reference. Example: "${x}/y" is "$x/y"."""
    if isinstance(value, list):
        return [unbraced(item) for item in value]
    if isinstance(value, dict):
        return {key: unbraced(item) for key, item in value.items()}
    return re.sub(r"\$\{(?!oc\.env:)([^{}]*)\}?", r"$\1", value) if isinstance(value, str) else value


def command_of(path: Path, training: int | None = None, variables: Mapping[str, str] | None = None) -> Command:
    """The command of a script with the most key=value words, or the one of this number among those of its program.
    `variables`: those of its environment. Raises ConfigError if there is none."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is neither a YAML nor a text.") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{path} is larger than {_MOST_BYTES >> 20} MiB, too large for a script that starts a run.")
    return find_command(text, str(path), str(path.absolute()), training, variables)


def find_command(
    text: str,
    path: str = "the script",
    file: str = "",
    training: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> Command:
    """The same of a text. `file`: the whole path that the script has, which it may ask for. `variables`: what its
    environment has, and its arguments by their numbers."""
    of_job = variables_of_job(text)

    def new(heeds_exit: bool = True) -> Walk:
        given = {name: value for name, value in (variables or {}).items() if not name.isdecimal()}
        numbers = [int(name) for name in variables or {} if name.isdecimal()]
        arguments = [(variables or {}).get(str(i + 1), "") for i in range(max(numbers))] if numbers else None
        return Walk(State({**of_job, **given}, {}, {}, {}, arguments, file, exported=set(given)), heeds_exit)

    try:
        steps = TreeReader(text.replace("\r\n", "\n")).script()
        walk = new()
        walk.script(steps)
        if not any(map(_asks, walk.commands)):
            walk = new(heeds_exit=False)
            walk.script(steps)
            walk.state.note(_READ_ON)
    except Damaged as error:
        raise ConfigError(f"{path}: {error}.") from None
    commands = [words for words in walk.commands if _asks(words)]
    if not commands:
        raise ConfigError(
            f"{path} has no command with key=value words, such as `python -m ... data.x=1`, or with --config-name."
        )
    stray = [word for words in commands if not _start(words) for word in words if _is_override(word)]
    has_program = any(map(_start, commands))
    again = partial(new, walk.heeds_exit)
    found = _by_branches(walk, again, steps)
    found = [each for each in found if _asks(each.line) and (_start(each.line) or not has_program)]
    chosen = max(found, key=lambda each: sum(map(_is_override, each.line)))
    trainings = list[_Placed]()
    for each in found:
        if _program(each.line) == _program(chosen.line) and each.line not in [more.line for more in trainings]:
            trainings.append(each)
    if training is not None:
        if not 0 < training <= len(trainings):
            raise ConfigError(f"--training {training}: the trainings of {path} have the numbers 1 to {len(trainings)}.")
        chosen = trainings[training - 1]
    words, state = chosen.line, chosen.walk.state
    is_read = {name: name in text or (name == "SLURM_NNODES" and "scontrol" in text) for name in of_job}
    left = {name: value for name, value in of_job.items() if name not in (variables or {}) and value != opened(name)}
    said = [f"{name}={value}" for name, value in left.items() if is_read[name]]
    if said:
        state.note(f"From its #SBATCH lines: {', '.join(said)}.")
    start = _start(words)
    rest = words[start:]
    program = words[:start]
    if not start and (before := chosen.walk.commands[: chosen.at]) and _module(before[-1]):
        program = before[-1]
        state.note(_CUT_OFF.format(" ".join(program)))
    others = [each for each in found if each.line not in [more.line for more in trainings]]
    return Command(
        tuple(program),
        tuple(word for word in rest if _is_override(word)),
        tuple(word for word in rest if word.startswith("-")),
        tuple(word for word in rest if not _is_override(word) and not word.startswith("-")),
        tuple(dict.fromkeys([*map(_other, others), *state.notes])),
        tuple(word for word in stray if start),
        tuple(_difference(each.line, words) for each in trainings) if len(trainings) > 1 else (),
        trainings.index(chosen),
        {**chosen.walk.environments[chosen.at], **dict(_passed_on(words))},
        _runs([each.around for each in trainings]),
        tuple(dict.fromkeys(_perhaps(walk, chosen, again, steps))),
        tuple(name for name in variables or {} if not name.isdecimal() and not _is_read(name, text, state, variables)),
    )


def _is_read(name: str, text: str, state: State, given: Mapping[str, str] | None) -> bool:
    """Whether a variable of the environment has a say in a script, by its text: a first use that stands before the
    script sets it, or in the same line, or one after which it still has the value."""
    read = re.search(rf"\$\{{?[#!]?{name}\b|\(\([^)]*\b{name}\b|-v\s+{name}\b|oc\.env:{name}\b", text)
    if read is None:
        return name == "SLURM_NNODES" and "scontrol" in text
    is_kept = name not in {**state.tables, **state.arrays} and state.variables.get(name) == (given or {}).get(name)
    written = re.search(rf"(?:^|[\s;&|(]){name}(?:\[[^\]]*\])?\+?=|\s-A\s+{name}\b", text)
    if is_kept or written is None:
        return True
    return read.start() < written.end() + len(text[written.end() :].partition("\n")[0])


@dataclass(frozen=True)
class _Placed:
    """A command of a walk, by its place in it; `around`: tests that nothing here decides, with the branches in which it
    stands. The walk took them, if it was possible."""

    line: list[str]
    walk: Walk
    at: int
    around: Branches


def _by_branches(walk: Walk, new: Callable[[], Walk], steps: Steps) -> list[_Placed]:
    """Return the commands of a walk in their order; those that only run in some branch of a test as a walk finds them
    that takes this branch: with its variables, and as often as its loops run."""
    found, again = list[_Placed](), dict[Branches, Walk | None]()
    for at, (node, around) in enumerate(walk.places):
        as_it_is = [_Placed(walk.commands[at], walk, at, around)]
        if around and _asks(walk.commands[at]):
            if around not in again:
                again[around] = _in_branches(new(), around, steps) if len(again) < _MOST_WALKS else None
            found += _again(walk, at, node, around, again[around]) or as_it_is
        else:
            found += as_it_is
    return found


def _perhaps(walk: Walk, chosen: _Placed, new: Callable[[], Walk], steps: Steps) -> Iterator[str]:
    """Yield key=value words that the chosen command has in branches of tests which nothing here decides, and not in the
    walk that it is of."""
    node = chosen.walk.places[chosen.at][0]
    same = [i for i, (other, _) in enumerate(chosen.walk.places) if other is node]
    branches = [each for each in walk.open_branches.values() if not _exclude((*chosen.around, *each), each)]
    for each in [each for each in branches if each[-1] not in chosen.around][:_MOST_WALKS]:
        again = _in_branches(new(), tuple(dict.fromkeys((*chosen.around, *each))), steps)
        after = [i for i, (other, _) in enumerate(again.places) if other is node] if again else []
        if again and len(after) == len(same):
            words = again.commands[after[same.index(chosen.at)]]
            yield from (word for word in _settings(words) if word not in [*_settings(chosen.line)])


def _settings(words: Sequence[str]) -> Iterator[str]:
    """Yield key=value words, those of torchrun's flags for sizes included: `--nnodes 2` is `--nnodes=2`."""
    for word, after in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        flag = name.replace("_", "-")
        if flag in _SIZES:
            yield f"{flag}={value if equals else after}"
        elif _is_override(word):
            yield word


def _in_branches(walk: Walk, around: Branches, steps: Steps) -> Walk | None:
    """Walk through these branches; None where their loops are too long, or where they are two of one test, in a
    function that calls itself."""
    if _exclude(around, around):
        return None
    walk.taken = around
    try:
        walk.script(steps)
    except Damaged:
        return None
    return walk


def _again(walk: Walk, at: int, node: Node, around: Branches, again: Walk | None) -> list[_Placed]:
    """Return what a command is in the walk that takes its branches; nothing where that cannot be told."""
    if again is None:
        return []
    before = [i for i, (other, its) in enumerate(walk.places) if other is node and not _exclude(around, its)]
    after = [i for i, (other, _) in enumerate(again.places) if other is node]
    if len(before) == len(after):
        after = [after[before.index(at)]]
    elif len(before) > 1:  # a function in several places, and loops
        return []
    return [_Placed(again.commands[i], again, i, around) for i in after]


def _passed_on(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield variables that a starter of programs gives its program.

    Example: of `env A=1 python x.py` it is A, of `ray job submit --runtime-env-json='{"env_vars": {"B": "2"}}'` B.
    """
    for before, word in pairwise(["", *words]):
        name, _, value = word.partition("=")
        text = word if before == "--runtime-env-json" else value if name == "--runtime-env-json" else ""
        given = _of_ray(text) if text else {}
        yield from ((str(key), str(value)) for key, value in given.items())
    yield from (
        (match[1], match[2]) for word in words[: _start(words)] if (match := _VARIABLE.fullmatch(word)) is not None
    )


def _of_ray(text: str) -> Mapping[str, Any]:
    try:
        variables = json.loads(text)["env_vars"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return variables if isinstance(variables, dict) else {}


def _exclude(first: Branches, second: Branches) -> bool:
    """Whether the branches of one test keep two commands from running both."""
    return any(test is other and number != place for test, number in first for other, place in second)


def _runs(places: list[Branches]) -> Literal["all", "some", "one"]:
    if not any(places):
        return "all"
    return "one" if all(_exclude(first, second) for first, second in combinations(places, 2)) else "some"


def _asks(words: list[str]) -> bool:
    """Whether a command has words of a configuration."""
    return any(_is_override(word) or _CONFIG.match(word) for word in words)


def _other(each: _Placed) -> str:
    """A note about a command of another program."""
    return f"{ANOTHER_COMMAND}{' '.join(each.line[: _start(each.line)])} ..."


def _program(words: list[str]) -> str:
    """The module or file that a command starts, whatever starts it; else its words before the first override.

    Example: verl.trainer.main_ppo of python3 -m verl.trainer.main_ppo --config-name=x a.b=1.
    """
    before = words[: _start(words)]
    return _module(before) or " ".join(before)


def _module(words: list[str]) -> str:
    return next((word for word in reversed(words) if _MODULE.fullmatch(word)), "")


def _difference(more: list[str], words: list[str]) -> str:
    """Words of a command that another one has not. Example: data.seed=2."""
    other = [word for word in more if _is_override(word) and word not in words]
    shown = other[:_MOST_SHOWN]
    return ", ".join([*shown, *(["..."] if other[_MOST_SHOWN:] else [])])


def _start(words: list[str]) -> int:
    """The first override, behind the program: words before it such as PYTHONUNBUFFERED=1 are its environment."""
    is_program = (word == "-m" or (word.endswith(".py") and not _is_override(word)) for word in words)
    program = next((i for i, found in enumerate(is_program) if found), 0)
    return next((i for i in range(program, len(words)) if _is_override(words[i])), len(words))


def _is_override(word: str) -> bool:
    return _OVERRIDE.fullmatch(word) is not None


# Variables that Slurm sets for a job, as far as the `#SBATCH` lines of its script say them.

_JOB_LINE = re.compile(r"#SBATCH[ \t]+(.*)")
_SHORT = {"-N": "nodes", "-n": "ntasks", "-G": "gpus", "-J": "job-name", "-c": "cpus-per-task"}
_GPUS = re.compile(r"gpu(?::[\w.-]+?)?:(\d+)")
_COUNT = re.compile(r"(?:[\w.-]+:)?(\d+)")
_VARIABLES = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "cpus-per-task": ("SLURM_CPUS_PER_TASK",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}


def variables_of_job(text: str) -> dict[str, str]:
    """Variables of a script's job by its `#SBATCH` lines; none without such a line. The number of nodes that no line
    tells stays open: `sbatch -N 4 FILE` may give it.

    Example: `#SBATCH --nodes=2` and `#SBATCH --gres=gpu:a100:4` are SLURM_NNODES 2 and SLURM_GPUS_ON_NODE 4.
    """
    options = _options(text)
    if not options:
        return {}
    found = {name: options["job-name"] for name in ("SLURM_JOB_NAME",) if "job-name" in options}
    counts = {option: _COUNT.fullmatch(options.get(option, "")) for option in _VARIABLES}
    found |= {name: count[1] for option, count in counts.items() if count for name in _VARIABLES[option]}
    if gpus := _GPUS.search(options.get("gres", "")):
        found["SLURM_GPUS_ON_NODE"] = gpus[1]
    tasks, per_node = (int(found.get(name, 0)) for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"))
    nodes = found.get("SLURM_NNODES", "")
    if "nodes" not in options and tasks and per_node:
        nodes = str(-(-tasks // per_node))
    found |= {name: nodes or opened(name) for name in _VARIABLES["nodes"]}
    if nodes and per_node and not tasks:
        found |= dict.fromkeys(_VARIABLES["ntasks"], str(int(nodes) * per_node))
    return found


def _options(text: str) -> dict[str, str]:
    """Options by their long names, of lines before the first command: no other counts. Example: `-N 2` is
    {"nodes": "2"}."""
    options: dict[str, str] = {}
    before = takewhile(lambda line: line.lstrip()[:1] in ("", "#"), text.split("\n"))
    for match in filter(None, map(_JOB_LINE.match, before)):
        words = _in_line(match[1])
        for i, word in enumerate(words):
            name, equals, value = word.partition("=")
            if word.startswith("--"):
                options[name[2:]] = value if equals else next(iter(words[i + 1 : i + 2]), "")
            elif word[:2] in _SHORT:
                options[_SHORT[word[:2]]] = word[2:] or next(iter(words[i + 1 : i + 2]), "")
    return options


def _in_line(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote that does not end
        return line.split()
