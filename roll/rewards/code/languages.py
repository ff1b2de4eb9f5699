"""The languages that answers may be written in. A new one is a row in `LANGUAGES`."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from importlib.resources import files

from roll.utils.sandbox.job import BOX, Job, Limits, View, own_python, view
from roll.utils.thinking import after_thinking

GUEST = files("roll.rewards.code.guest")
PROGRAM = "program"  # the file that a compiler makes
COMPILING = Limits(cpu_s=60, wall_s=120, memory_mb=2048, disk_mb=256, output_bytes=64 * 2**20)
ASK_PYTHON = "import os, sys; print(sys.prefix, sys.base_prefix, os.path.realpath(sys.executable), sep='\\n')"
ENVIRONMENT = {  # digits: an integer may be as long as it likes, as in the languages that tasks are written for
    "PYTHONHASHSEED": "0",
    "PYTHONINTMAXSTRDIGITS": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
NEEDS: Mapping[str, tuple[str, ...]] = {  # guests that a guest imports
    "program": ("names",),
    "answer": ("names", "wire"),
    "checker": ("names", "wire", "stand_ins", "raised", "remote", "files", "runner"),
}
PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")  # distributions: it and what it needs


@dataclass(frozen=True)
class Python:
    """An interpreter and what it has to see. The run's own comes without the packages that are installed beside it."""

    command: tuple[str, ...]
    shown: tuple[str, ...]

    def job(self, script: str, solution: bytes, limits: Limits, *arguments: str, **more: bytes) -> Job:
        """Runs a guest's script; `more` are further files, their names with __ for the dot."""
        guests = {f"{name}.py": guest_source(name) for name in (*NEEDS[script], script)}
        named = {name.replace("__", "."): content for name, content in more.items()}
        folder, shown = pytest_paths() if script == "checker" else ("", ())
        return Job(
            (*self.command, f"{BOX}/{script}.py", *arguments),
            system_view(*self.shown, *shown),
            limits,
            {**guests, "solution.py": solution, **named},
            {**ENVIRONMENT, "PYTHONPATH": folder, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )


@cache
def system_view(*shown: str) -> View:
    return view(*shown)


@cache
def pytest_paths() -> tuple[str, tuple[str, ...]]:
    """The folder in which this Python has pytest, and what of it a job sees: pytest alone, and what it needs."""
    files = [file for name in PYTEST for file in distribution(name).files or ()]
    tops = {file.parts[0] for file in files if not file.parts[0].endswith((".dist-info", "..", "__pycache__"))}
    folder = str(distribution("pytest").locate_file(""))
    return folder, tuple(f"{folder}/{name}" for name in sorted(tops))


@cache
def guest_source(name: str) -> bytes:
    return GUEST.joinpath(f"{name}.py").read_bytes()


@cache
def find_python(path: str | None = None) -> Python:
    """Raises OSError or CalledProcessError if `path` is no Python."""
    if path is None:
        python, shown = own_python()
        return Python((python, "-s", "-S", "-B"), shown)
    completed = subprocess.run([path, "-c", ASK_PYTHON], capture_output=True, text=True, check=True)
    prefix, base, real = completed.stdout.splitlines()
    named = os.path.abspath(path)
    paths = (f"{prefix}/lib", f"{base}/lib", f"{prefix}/pyvenv.cfg", named, real)
    return Python((named, "-s", "-B"), tuple(dict.fromkeys(filter(os.path.exists, paths))))


@dataclass(frozen=True)
class Language:
    """`fences`: words that begin a block of it. `needs` and `install`: a program, and where it comes from. `compiling`:
    the job whose stdout is the program of an answer, None where the answer itself is run."""

    fences: tuple[str, ...]
    needs: str | None = None
    install: str = ""
    compiling: Callable[[bytes], Job] | None = None


def _compile_cpp(source: bytes) -> Job:
    script = "g++ -std=gnu++17 -O2 -w -o /tmp/program /box/solution.cpp && cat /tmp/program"
    return Job(("/bin/sh", "-c", script), system_view(), COMPILING, {"solution.cpp": source}, may_fork=True)


PYTHON = "python"
LANGUAGES: Mapping[str, Language] = {
    PYTHON: Language(("python", "py", "python3")),
    "cpp": Language(("cpp", "c++", "cc", "cxx"), "/usr/bin/g++", "apt install g++", _compile_cpp),
}


def fences_of(languages: tuple[str, ...]) -> dict[str, str]:
    """Word of a fence -> language, for these; the first one's words come first."""
    return {word: name for name in languages for word in LANGUAGES[name].fences}


def missing(languages: tuple[str, ...]) -> list[str]:
    """Return what this machine lacks for these languages."""
    lines = []
    for name in languages:
        language = LANGUAGES[name]
        if language.needs is not None and not os.path.exists(language.needs):
            lines.append(f"{name} needs {language.needs}, which is not there. Install it: {language.install}")
    return lines


# The program in an answer.

_FENCE = re.compile(r"(?P<before>[^`~]*?)(?P<fence>`{3,}|~{3,})[ \t]*(?P<word>[^\s`]*)[^`]*")
_LEADS = re.compile(
    r"\s*(?:.*[:>]|[-*+]|\d{1,9}[.)])?\s*"
)  # text before a fence on its line: "Code:", an item of a list
_WORD = re.compile(r"\{?\.?(?:lang(?:uage)?-)?([A-Za-z][\w+#]*)(?![\w-])")


@dataclass(frozen=True)
class Code:
    language: str
    text: str


def code_in(text: str, fences: Mapping[str, str], plain: str | None = None) -> Code | None:
    """The last fenced block after the thinking whose word, such as `python`, is in `fences` (word -> language). Without
    any, the last block without a word, which is of the first language: behind a program it shows what that prints. A
    block that never ends is none. None if there is no such block; with `plain` an answer without any fence is code of
    that language."""
    answer = after_thinking(text)
    blocks = [(word, body) for word, body in _blocks(answer) if body.strip() and (not word or word in fences)]
    named = [(word, body) for word, body in blocks if word]
    if blocks:
        word, body = (named or blocks)[-1]
        return Code(fences[word] if word else next(iter(fences.values())), _dedented(body))
    if plain is not None and answer.strip() and "```" not in answer and "~~~" not in answer:
        return Code(plain, answer.strip() + "\n")
    return None


def _dedented(body: str) -> str:
    """The lines without the indent that all have. A line of blanks may be part of a string, so it has no say."""
    indents = re.findall(r"^([ \t]*)\S", body, re.MULTILINE)
    indent = min(indents, key=len)
    is_common = all(one.startswith(indent) for one in indents)
    return re.sub(f"^{indent}", "", body, flags=re.MULTILINE) if is_common else body


def _blocks(answer: str) -> Iterator[tuple[str, str]]:
    """The word of each fenced block that ends, in small letters, and its lines."""
    fence, word, body = "", "", list[str]()
    for line in answer.splitlines(keepends=True):
        if not fence:
            opening = _FENCE.fullmatch(line)
            if opening is not None and (
                _LEADS.fullmatch(opening["before"]) or (opening["word"] and line.rstrip().endswith(opening["word"]))
            ):
                fence, word, body = opening["fence"], _language(opening["word"]), []
        elif line.strip().startswith(fence) and re.match(r"[\s<]|$", line.strip().lstrip(fence[0])):
            yield word, "".join(body)
            fence = ""
        elif line.rstrip().endswith(fence) and fence not in (last := line.rstrip()[: -len(fence)]):
            yield word, "".join(body) + last + "\n"
            fence = ""
        else:
            body.append(line)


def _language(word: str) -> str:
    """Example: python of `{.python .numberLines}`, `language-python`, `python:main.py` and `Python3.11`: python3."""
    match = _WORD.match(word)
    return match[1].lower() if match else word.lower()
