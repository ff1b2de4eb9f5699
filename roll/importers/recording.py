"""Recording of what a shell script would start: bash runs it in the sandbox, recorder.sh writes down programs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from roll.errors import ConfigError
from roll.utils.files import path_info
from roll.utils.sandbox.backends import SandboxUnavailable, find_means
from roll.utils.sandbox.job import Job, Limits, own_python, view
from roll.utils.sandbox.process import SandboxError, run

_BASH, _RECORDER = "/usr/bin/bash", Path(__file__).with_name("recorder.sh")
_LIMITS = Limits(cpu_s=5, wall_s=60, memory_mb=512)
_SCRIPT_S = 10
_START = ("/tmp/start/a/b/c", "/tmp/start/a/b", "/tmp/start/a", "/tmp/start")
"""The folder in which a script starts, and those above it."""
_TOKEN = re.compile("\2([0-9]+)\3")
_SYSTEM = ("bin", "box", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "tmp", "usr")
_OUTPUT, _INPUT = (re.compile(rf"{sign}\s*{sign}\(([^()]*(?:\([^()]*\)[^()]*)*)\)") for sign in "><")
"""The sandbox has no /proc, so nothing like `< <(program)`: it becomes `<<<"$(program)"`."""
_NAME = r"([A-Za-z_]\w*)"
_WRITTEN = (
    rf"(?:^|[\s;&|(]){_NAME}(?:\[[^]]*\])?\+?=|\$\{{{_NAME}:?[-+=]|-[znv]\s+[\"']?\$?\{{?{_NAME}|"
    rf"\b(?:for|read|mapfile)\s+(?:-\w+\s+)*{_NAME}"
)
_PASSED_ON = rf"\b{_NAME}=[^\s=]*\$(?:\1\b|\{{\1\b(?!:?[-=+]))|(?:-e|--env)[ =]+\w+="
"""`X=$X/y` is no value of its own, and `-e X=...` is one of another program."""
_OF_BASH = re.compile(r"BASH\w*|(OLD)?PWD|RANDOM|E?UID|PPID|PATH|SECONDS|IFS|LINENO|FUNCNAME|REPLY|OPT(ARG|IND)|_+")
_MOST_RUNS, _LARGEST, _MOST_DISKS = 6, 1 << 20, 12


@dataclass(frozen=True)
class Started:
    """A program that the script would start at this line, its words, and the variables that the script exports."""

    line: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Tested:
    """A test that looks for a file, a program or a value of the machine of the run."""

    line: int
    text: str
    is_true: bool

    @property
    def note(self) -> str:
        """Return which way the script went."""
        if self.text.startswith("case "):
            return f"Line {self.line}: no pattern but * fits in `{self.text.strip()}`, whose value only a run has."
        known = "true" if self.is_true else "false"
        return f"Line {self.line}: `{self.text}` is {known} here. It asks for files, programs or values of the run."


@dataclass
class Recording:
    """`wanted`: files that the script looks for, with the folder in which it does; `unread`: scripts that it sources
    and that are not here; `errors`: what bash says."""

    started: list[Started] = field(default_factory=list)
    tests: list[Tested] = field(default_factory=list)
    wanted: list[tuple[str, str]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    is_late: bool = False
    counts_gpus: bool = False

    @property
    def notes(self) -> list[str]:
        """Return sentences on what the run lacked here."""
        tests = dict[str, Tested]((each.text, each) for each in self.tests)
        unread = [
            f"{name} is not here, is hidden or cannot be read: the script is read without it."
            for name in dict.fromkeys(self.unread)
        ]
        late = ["The script does not end by itself: it is read until it is stopped."] if self.is_late else []
        return [*(each.note for each in tests.values()), *unread, *late]


@dataclass(frozen=True)
class Script:
    """A script as it is run. `place`: its path; `arguments` are $1 and so on; `known`: variables of its environment;
    `names`: those that are open; `heeds_exit`: False to go on behind an exit; `gpus`: devices of a machine;
    `answers`: what programs print, by their words."""

    text: str
    place: str
    known: Mapping[str, str] = field(default_factory=dict)
    names: Sequence[str] = ()
    arguments: Sequence[str] = ()
    heeds_exit: bool = True
    gpus: int = 8
    answers: Mapping[str, str] = field(default_factory=dict)


def record(script: Script) -> Recording:
    """Run a script until it has all files of this machine that it asks for. Raises ConfigError for a script that bash
    cannot read, and on a machine without the sandbox."""
    text = _INPUT.sub(r'<<<"$(\1)"', _OUTPUT.sub(">/dev/null", script.text))
    shown: dict[str, bytes | None] = {script.place: text.encode()}
    for _ in range(_MOST_RUNS):
        texts = [content.decode(errors="replace") for content in shown.values() if content]
        names = {*script.names, *(name for each in texts for name in open_names(each))} - script.known.keys()
        found = _run(replace(script, names=sorted(names)), shown)
        more = dict(_found_here(script.place, found.wanted))
        if found.is_late or not more.keys() - shown.keys():
            return found
        shown = {**more, **shown}
    raise ConfigError(f"{script.place} sources a script that sources another, and so on, more than {_MOST_RUNS} deep.")


def open_names(text: str) -> set[str]:
    """Return variables that a script reads, and for which it has neither a value nor a default."""
    code = re.sub(r"(?m)^\s*#.*$", "", text)
    read = set(re.findall(rf"(?<!\\)\$\{{?{_NAME}", code))
    read |= {
        name
        for part in re.findall(r"(?:\(\(|\$\[)([^()\]]*)(?:\)\)|\])", code)
        for name in re.findall(rf"\b{_NAME}", part)
    }
    own = re.sub(_PASSED_ON, "", code)
    written = {name for found in re.findall(_WRITTEN, own, re.MULTILINE) for name in found}
    written -= set(re.findall(rf"\$\{{{_NAME}:?\?", code))
    return {name for name in read - written if not _OF_BASH.fullmatch(name)}


def _found_here(script: str, wanted: Sequence[tuple[str, str]]) -> list[tuple[str, bytes | None]]:
    """Return files that the script asks for and that are on this machine: texts, others as empty files, and folders as
    None. Hidden ones, which may hold secrets, are not shown."""
    found = list[tuple[str, bytes | None]]()
    for folder, name in wanted:
        place = Path(folder, name)
        if "\2" in str(place) or "\0" in name or any(part.startswith(".") and part.strip(".") for part in place.parts):
            continue
        start = Path(_START[0])
        inside = place.relative_to(start) if place.is_relative_to(start) else None
        tops = _starts(Path(script).parent) if inside else [Path("/")]
        for path in [top / (inside or place) for top in tops]:
            info = path_info(path)
            if (info.is_file or info.is_directory) and path.resolve().parts[1:2] not in (("proc",), ("sys",), ("dev",)):
                with suppress(OSError):
                    found.append((str(place), _text_of(path) if info.is_file else None))
                break
    return found


def _starts(folder: Path) -> list[Path]:
    """Return the folders from which the script may be started: this one, its own, and those up to its checkout."""
    above = [folder, *folder.parents]
    top = next((i for i, each in enumerate(above) if (each / ".git").exists()), 0)
    return [Path.cwd(), *above[: top + 1]]


def _text_of(path: Path) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(_LARGEST + 1)
    return b"" if b"\0" in data or len(data) > _LARGEST else data


def _reference(name: str) -> str:
    return f"${{oc.env:{name}}}" if name.isupper() else f"${{{name}}}"


def _run(script: Script, shown: Mapping[str, bytes | None]) -> Recording:
    texts = {str(i + 1): _reference(name) for i, name in enumerate(script.names)}
    environment = {name: f"\2{i + 1}\3" for i, name in enumerate(script.names)} | dict(script.known)
    arguments = list[str]()
    for number, value in enumerate(script.arguments, 1):
        texts[f"0{number}"] = f"${{{number}}}"
        arguments.append(f"\0020{number}\3" if value == texts[f"0{number}"] else value)
    interpreter, libraries = own_python()
    values = {"interpreter": interpreter, "on": "" if script.heeds_exit else "1", "gpus": str(script.gpus)}
    header = "".join(f"__{name}={shlex.quote(value)}\n" for name, value in values.items())
    answers = {f"read {name}": value for name, value in script.known.items()} | dict(script.answers)
    pairs = [f"[{shlex.quote(words)}]={shlex.quote(text)}" for words, text in answers.items()]
    header += f"declare -A __answers=({' '.join(pairs)})\n"
    places = {place: f"f{i}" for i, place in enumerate(shown)}
    copies = [
        f"mkdir -p {shlex.quote(place if shown[place] is None else str(Path(place).parent))}"
        + ("" if shown[place] is None else f" && cp /box/{name} {shlex.quote(place)}")
        for place, name in places.items()
    ]
    pairs = [
        f"{name}={value}" for name, value in {**environment, "BASH_ENV": "/box/recorder", "LANG": "C.UTF-8"}.items()
    ]
    command = ["env", "-i", *pairs, "timeout", "--foreground", "-s", "KILL", str(_SCRIPT_S), _BASH, script.place]
    outer = [
        f"mkdir -p /tmp/.roll {_START[0]}",
        *copies,
        f"cd {_START[0]}",
        f"bash -n {shlex.quote(script.place)} || exit 9",
        f"{shlex.join([*command, *arguments])} </dev/null >/dev/null",
        "case $? in 137 | 152) printf 'late\\0000\\0000\\0\\36\\0' ;; esac",
        "cd /tmp/.roll && cat [0-9]* 2>/dev/null",
    ]
    files = {name: content for place, name in places.items() if (content := shown[place]) is not None}
    files |= {"outer": "\n".join(outer).encode(), "recorder": header.encode() + _RECORDER.read_bytes()}
    tops = [path.split("/")[1] for path in [*shown, *re.findall(r"/[\w.-]+/", script.text)]]
    disks = [f"/{top}" for top in dict.fromkeys(tops) if top not in _SYSTEM and not top.startswith(".")][:_MOST_DISKS]
    job = Job((_BASH, "/box/outer"), view(*libraries), _LIMITS, files, may_fork=True, disks=tuple(disks))
    try:
        finished = run(job, find_means(*libraries))
    except (SandboxUnavailable, SandboxError) as error:
        raise ConfigError(
            f"a script is run by bash in the sandbox, and {error}. Or import the key=value words of its command: "
            "roll import data.train_batch_size=256 ..."
        ) from None
    said = finished.stderr.decode(errors="replace").splitlines()
    errors = [line for line in said if not line.startswith(("/box/", "+"))]
    if finished.code == 9:
        raise ConfigError(f"{errors[0].partition(': ')[2] if errors else 'bash cannot read it'}.")
    return _recording(finished.stdout.decode(errors="replace"), errors, texts, environment)


def _recording(output: str, errors: list[str], texts: dict[str, str], environment: Mapping[str, str]) -> Recording:
    records = [record.split("\0") for record in output.split("\36\0")[:-1]]
    for kind, number, _, *words in records:
        if kind == "text":  # of `a | b`, a is the text of another token
            inner = _TOKEN.match(words[0])
            before = texts.get(inner[1], "") if inner and words[0][inner.end() :].startswith(" | ") else ""
            text = before[2:-1] + words[0][inner.end() :] if inner and before.startswith("$(") else words[0]
            texts[number] = _reference(text[5:]) if text.startswith("read ") else f"$({text})"

    def decoded(text: str) -> str:
        for i, folder in enumerate(_START):
            text = text.replace(f"{folder}/\2", "\2")
            text = re.sub(rf"{folder}(?![\w.-])", "${oc.env:PWD}" + "/.." * i, text)
        for _ in range(8):
            text = _TOKEN.sub(lambda token: texts.get(token[1], ""), text)
        return text

    found = Recording(errors=list(map(decoded, errors)))
    for kind, _, line, *words in records:
        if kind == "command":
            at = words.index("\35")
            pairs = [pair.partition("=") for pair in words[at + 1 :] if pair]
            new = {name: decoded(value) for name, _, value in sorted(pairs) if environment.get(name) != value}
            found.started.append(
                Started(
                    int(line),
                    tuple(map(decoded, words[:at])),
                    {k: v for k, v in new.items() if k not in _OF_SHELL and k[:2] != "__"},
                )
            )
        elif kind == "test":
            found.tests.append(Tested(int(line), words[0], words[1] == "0"))
        elif kind in ("file", "source"):
            found.wanted.append((words[0], words[1]))
            found.unread += [decoded(words[1])] if kind == "source" else []
        found.is_late |= kind == "late"
        found.counts_gpus |= kind == "counted"
    return found


_OF_SHELL = ("PATH", "PWD", "OLDPWD", "SHLVL", "_", "BASH_ENV", "LANG", "FUNCNEST")
