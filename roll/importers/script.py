"""The command of a shell script: its words as bash makes them; what only a run would tell stays open."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from roll.errors import ConfigError
from roll.importers.recording import Recording, Script, Started, open_names, record

_OVERRIDE = re.compile(r"(\+{0,2}|~)[A-Za-z_]\w*(\.[\w-]+)*=.*|~[A-Za-z_]\w*(\.[\w-]+)+", re.DOTALL)
_OUTPUT = re.compile(r"\$\((?!\()")
_STAMP = r"(?:\$\(date\b[^()]*\))"
_DATE = re.compile(rf"(?:^|(?<=/))(?:{_STAMP}[-_.]?)+/?|[-_.]?{_STAMP}")
_VARIABLE = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{(?!oc\.)[^{}]*\}|\$\d")
_OPEN = re.compile(r"\$(\d|\(|\{)")
ANOTHER_COMMAND = "Not imported, another command: "
_CONFIG = re.compile(r"--config[-_](name|path)(=|$)|-cn$")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)+|\S+\.py")
_OF_RANK = re.compile(
    r"((\w+_)?(NODE|MACHINE)_?|OMPI_COMM_WORLD_|PMI_|GROUP_)?RANK|SLURM_(NODE|PROC)ID|(\w+_)?(WORKER|ROLE|TASK)_INDEX"
)
"""Variables that number nodes: the first one starts the run."""
_MOST_SHOWN = 5
_MOST_BYTES = 1 << 20
_PLAIN = re.compile(r"(?:\w+=\w+ )*(?:python3?|torchrun) (?:[\w ./:=,+~@%^-]|\[|\]|'[^']*'|\"[^\"$`\\!]*\")+")
_QUESTION = re.compile(r"line (\d+): .*?(\$\{(?:oc\.env:)?(\w+)\}|\$\((.+?)\)(?!\))).*error token")
GPUS = 8
COUNTED = "The script leaves its GPUs to the machine: {} are taken. --gpus N takes another number."
_DEVICES = "CUDA_VISIBLE_DEVICES"
_READ_ON = "The script ends at an exit before its command, for it misses something here. It is read as if it went on."
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
    unread: tuple[str, ...] = ()
    """Variables that were given, and that change nothing of the command."""
    line: int = 0
    gpus: int = GPUS
    """Number of GPUs of a machine, where the script leaves it to that."""

    def flag(self, *names: str) -> str | None:
        """The value of --name=value or --name value, or the word behind a short name such as -cn."""
        words = [*self.program, *self.flags, *self.others]
        for i, word in enumerate(words):
            name, equals, value = word.lstrip("-").partition("=")
            if word in names or (word.startswith("--") and name.replace("_", "-") in names):
                return value if equals else next(iter(words[i + 1 : i + 2]), None)
        return None


def is_open(value: object) -> bool:
    """True for a text in which the script leaves something to the shell, alone or in a list."""
    if isinstance(value, list):
        return any(map(is_open, value))
    return isinstance(value, str) and _OPEN.search(value.replace("${oc.env:", "")) is not None


def is_reference(value: object) -> bool:
    """True for a text that is one variable whose value only the shell knows."""
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def is_output(value: object) -> bool:
    """True for a text with the output of a program, alone or in a list. A template of Jinja has none."""
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


def command_of(
    path: Path, training: int | None = None, variables: Mapping[str, str] | None = None, gpus: int | None = None
) -> Command:
    """The command of a script with the most key=value words, or the one of this number among those of its program.
    `variables`: those of its environment; `gpus`: those of a machine, for a script that counts them. Raises
    ConfigError if there is no command."""
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
    return find_command(text, str(path), str(path.absolute()), training, variables, gpus)


def find_command(
    text: str,
    path: str = "the script",
    file: str = "/nowhere/script",
    training: int | None = None,
    variables: Mapping[str, str] | None = None,
    gpus: int | None = None,
) -> Command:
    """The same of a text. `file`: the whole path of the script. `variables`: those of its environment, and its
    arguments by their numbers."""
    text = text.replace("\r\n", "\n").replace("\0", "")
    given = dict(variables or {})
    of_job = {name: value for name, value in variables_of_job(text).items() if name not in given}
    ranks = {name: "0" for name in open_names(text) if _OF_RANK.fullmatch(name) and name not in {**of_job, **given}}
    of_job |= ranks
    asks_gpus = _DEVICES in open_names(text) - given.keys()
    of_job |= {_DEVICES: _numbered(gpus or GPUS)} if asks_gpus else {}
    known = {name: value for name, value in {**of_job, **given}.items() if value and not name.isdecimal()}
    number = max((int(name) for name in given if name.isdecimal()), default=0)
    arguments = [given.get(str(i + 1), "") for i in range(number)]
    script, found = _recorded(Script(text, file, known, list(of_job), arguments, gpus=gpus or GPUS))
    if questions := _questions(found):
        found = _computed(script, questions, path)
    if not _commands(found):
        late = " It does not end within 5 s of computing." if found.is_late else ""
        usual = "such as `python -m ... data.x=1`, or with --config-name"
        given = [word for each in found.started for word in each.argv if word.endswith((".yaml", ".yml"))]
        late += f" It gives {given[0]} to a program: import that file." if given else ""
        raise ConfigError(
            f"{path} has no command with key=value words, {usual}.{late}", *found.notes, *found.errors[-5:]
        )
    commands = _commands(found)
    stray = [word for each in commands if not _start(each.argv) for word in each.argv if _is_override(word)]
    commands = [each for each in commands if _start(each.argv)] or commands
    chosen = max(commands, key=lambda each: sum(map(_is_override, each.argv)))
    same = [each for each in commands if _program(each.argv) == _program(chosen.argv)]
    trainings = [each for i, each in enumerate(same) if each.argv not in [other.argv for other in same[:i]]]
    if training is not None:
        if not 0 < training <= len(trainings):
            raise ConfigError(f"--training {training}: the trainings of {path} have the numbers 1 to {len(trainings)}.")
        chosen = trainings[training - 1]
    words, at = chosen.argv, found.started.index(chosen)
    start = _start(words)
    program, before = words[:start], found.started[at - 1].argv if at else ()
    notes = [
        f"{ANOTHER_COMMAND}{' '.join(each.argv[: _start(each.argv)])} ..." for each in commands if each not in same
    ]
    notes += [] if script.heeds_exit else [_READ_ON]
    notes += [COUNTED.format(script.gpus)] if found.counts_gpus or asks_gpus else []
    said = [f"{k}={v}" for k, v in of_job.items() if v and (k in text or (k == "SLURM_NNODES" and "scontrol" in text))]
    notes += [f"As on the first node: {', '.join(f'{name}=0' for name in sorted(ranks))}."] if ranks else []
    said = [each for each in said if each.partition("=")[0] not in (*ranks, _DEVICES)]
    notes += [f"From its #SBATCH lines: {', '.join(said)}."] if said else []
    if not start and _module(before):
        program = before
        notes.append(_CUT_OFF.format(" ".join(program)))
    return Command(
        program,
        tuple(_with_name(word, text) for word in words[start:] if _is_override(word)),
        tuple(word for word in words[start:] if word.startswith("-")),
        tuple(word for word in words[start:] if not _is_override(word) and not word.startswith("-")),
        tuple(dict.fromkeys([*notes, *found.notes])),
        tuple(word for word in stray if start),
        tuple(_difference(each.argv, words) for each in trainings) if len(trainings) > 1 else (),
        [each.argv for each in trainings].index(words),
        {**{k: v for k, v in known.items() if k in given}, **chosen.environment, **dict(_passed_on(words))},
        tuple(name for name in given if not name.isdecimal() and not _has_say(name, script, commands)),
        chosen.line,
        script.gpus,
    )


def _commands(found: Recording) -> list[Started]:
    """Return the commands that have words of a configuration."""
    return [each for each in found.started if _asks(each.argv)]


def _recorded(script: Script) -> tuple[Script, Recording]:
    """Run a script until it comes to its command: as it is, with open arguments, and on behind its exits."""
    if words := _plain(script.text):
        given = [word.partition("=") for word in takewhile(re.compile(r"[A-Za-z_]\w*=").match, words)]
        environment = {name: value for name, _, value in given}
        return script, Recording([Started(1, tuple(words[len(given) :]), environment)])
    body = re.sub(r"(?ms)^\s*(function\s+)?[\w-]+\s*\(\)\s*\{.*?^\s*\}", "", re.sub(r"(?m)^\s*#.*$", "", script.text))
    plain = {int(number) for number in re.findall(r"\$\{?([1-9])(?![\w:+-])", body)}
    plain -= {int(number) for number in re.findall(r"\$\{([1-9]):?[-+=]", body)}
    marks = [f"${{{i}}}" if i in plain else "" for i in range(1, max(plain, default=0) + 1)]
    choices = [script.arguments] if script.arguments or not plain else [marks, ()]
    tried = list[tuple[Script, Recording]]()
    for heeds_exit in (True, False):
        for arguments in choices:
            again = replace(script, arguments=arguments, heeds_exit=heeds_exit)
            tried.append((again, record(again)))
            found = tried[-1][1]
            if _commands(found) or _questions(found) or (found.is_late and arguments is choices[-1]):
                return tried[-1]
    return tried[0]


def _plain(text: str) -> list[str]:
    """Return the words of a script that is one command without anything for a shell to do; none for another."""
    code = re.sub(r"(?m)(?<!\\\n)^[ \t]*#.*\n?", "", text)  # behind a backslash a comment ends the command
    line = code.replace("\\\n", " ").strip()
    return shlex.split(line) if _PLAIN.fullmatch(line) else []


def _questions(found: Recording) -> list[re.Match[str]]:
    """Return what bash says of sums with a value that only a run would tell."""
    return [match for error in found.errors if (match := _QUESTION.search(error))]


def _computed(script: Script, questions: list[re.Match[str]], path: str) -> Recording:
    """Return the recording with 1 for such values, if the command is the same with 2. Raises ConfigError if not."""
    found = list[Recording]()
    for _ in range(4):  # a sum may wait for another one
        found.clear()
        for number in ("1", "2"):
            known = {**script.known, **{match[3]: number for match in questions if match[3]}}
            arguments = [known.get(value.strip("${}"), value) for value in script.arguments]
            answers = {**script.answers, **{match[4]: number for match in questions if match[4]}}
            found.append(record(replace(script, known=known, arguments=arguments, answers=answers)))
        more = [match for match in _questions(found[0]) if match[2] not in [other[2] for other in questions]]
        if not more:
            break
        questions = [*questions, *more]
    first, second = ([each.argv for each in _commands(each)] for each in found)
    if not first or first != second or _questions(found[0]):
        raise ConfigError(*dict.fromkeys(f"{path}, line {match[1]}: {_what_to_give(match)}" for match in questions))
    return found[0]


def _what_to_give(match: re.Match[str]) -> str:
    if match[3]:
        how = (
            f"Give {match[3]}=2 or so after the file" if match[3].isupper() or match[3].isdecimal() else "Set it there"
        )
        return f"it computes with {match[3]}, which it does not set. {how}."
    return f"it computes with {match[2]}, which an import does not run. Put a number there."


def _with_name(word: str, text: str) -> str:
    """The same with what the script has there, if nothing came of it. Example: `a.b=` is `a.b=${x}`."""
    found = (
        re.search(rf"{re.escape(word)}[\"']?\$(?:\{{?(\w+)\b(?!:?\+)|(\([^)]*\)))", text) if word[-1] == "=" else None
    )
    return word if found is None else f"{word}${found[2]}" if found[2] else f"{word}${{{found[1]}}}"


def _has_say(name: str, script: Script, commands: list[Started]) -> bool:
    """Whether a variable that was given changes a command: whether it is another one if the variable is open."""
    if name not in script.known or re.search(rf"\$\{{{name}:?\?", script.text):
        return True
    known = {other: value for other, value in script.known.items() if other != name}
    _, found = _recorded(replace(script, known=known, names=[*script.names, name]))
    return [(each.argv, each.environment) for each in _commands(found)] != [
        (each.argv, each.environment) for each in commands
    ]


def _numbered(gpus: int) -> str:
    return ",".join(map(str, range(gpus)))


def _passed_on(words: Sequence[str]) -> Iterator[tuple[str, str]]:
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


def _asks(words: Sequence[str]) -> bool:
    """Whether a command has words of a configuration."""
    return any((_is_override(word) and not _VARIABLE.fullmatch(word)) or _CONFIG.match(word) for word in words)


def _program(words: Sequence[str]) -> str:
    """The module or file that a command starts, whatever starts it; else its words before the first override.

    Example: verl.trainer.main_ppo of python3 -m verl.trainer.main_ppo --config-name=x a.b=1.
    """
    before = words[: _start(words)]
    return _module(before) or " ".join(before)


def _module(words: Sequence[str]) -> str:
    return next((word for word in reversed(words) if _MODULE.fullmatch(word)), "")


def _difference(more: Sequence[str], words: Sequence[str]) -> str:
    """Words of a command that another one has not. Example: data.seed=2."""
    other = [word for word in more if _is_override(word) and word not in words]
    shown = other[:_MOST_SHOWN]
    return ", ".join([*shown, *(["..."] if other[_MOST_SHOWN:] else [])])


def _start(words: Sequence[str]) -> int:
    """The first override, behind the program: words before it such as PYTHONUNBUFFERED=1 are its environment."""
    is_program = (word == "-m" or (word.endswith(".py") and not _is_override(word)) for word in words)
    program = next((i for i, found in enumerate(is_program) if found), 0)
    return next((i for i in range(program, len(words)) if _is_override(words[i])), len(words))


def _is_override(word: str) -> bool:
    return _OVERRIDE.fullmatch(word) is not None


# Variables that Slurm sets for a job, as far as the `#SBATCH` lines of its script say them.

_JOB_LINE = re.compile(r"#SBATCH[ \t]+(.*)")
_OPTION = re.compile(r"(?<!\S)(--[\w-]+(?==|\s)|-[A-Za-z])=?\s*([^\s#-][^\s#]*)")
_COUNT, _WHOLE = r"(?:[\w.-]+:)?(\d+)\Z", r"(.*)"
_OF_JOB: Mapping[str, tuple[str, ...]] = {
    "SLURM_JOB_NAME": (_WHOLE, "--job-name", "-J"),
    "SLURM_NNODES": (_COUNT, "--nodes", "-N"),
    "SLURM_NTASKS": (_COUNT, "--ntasks", "-n"),
    "SLURM_NTASKS_PER_NODE": (_COUNT, "--ntasks-per-node"),
    "SLURM_CPUS_PER_TASK": (_COUNT, "--cpus-per-task", "-c"),
    "SLURM_GPUS_PER_NODE": (_COUNT, "--gpus-per-node"),
    "SLURM_GPUS_ON_NODE": (r".*?gpu(?::[\w.-]+?)?:(\d+)", "--gres"),
}
"""Variables with the form of their value, and the options that say it."""
_ALSO = {
    "SLURM_JOB_NUM_NODES": "SLURM_NNODES",
    "SLURM_NPROCS": "SLURM_NTASKS",
    "SLURM_GPUS_ON_NODE": "SLURM_GPUS_PER_NODE",
}


def variables_of_job(text: str) -> dict[str, str]:
    """Variables of a script's job by its `#SBATCH` lines before the first command; none without such a line. The number
    of nodes that no line tells stays open: `sbatch -N 4 FILE` may give it.

    Example: `#SBATCH --nodes=2` and `#SBATCH --gres=gpu:a100:4` are SLURM_NNODES 2 and SLURM_GPUS_ON_NODE 4.
    """
    before = takewhile(lambda line: line.lstrip()[:1] in ("", "#"), text.split("\n"))
    lines = [match[1] for match in map(_JOB_LINE.match, before) if match]
    if not lines:
        return {}
    given = dict(pair for line in lines for pair in _OPTION.findall(line))
    found = {"SLURM_SUBMIT_DIR": "."}  # where the import runs
    for name, (form, *options) in _OF_JOB.items():
        value = next((given[option] for option in options if option in given), "")
        if value and (match := re.match(form, value)):
            found[name] = match[1]
    tasks, per_node = (int(found.get(name, 0)) for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"))
    if not {"-N", "--nodes"} & given.keys() and tasks and per_node:
        found["SLURM_NNODES"] = str(-(-tasks // per_node))
    nodes = found.setdefault("SLURM_NNODES", "")
    if nodes and per_node and not tasks:
        found["SLURM_NTASKS"] = str(int(nodes) * per_node)
    return {**found, **{name: found[same] for name, same in _ALSO.items() if same in found and name not in found}}
