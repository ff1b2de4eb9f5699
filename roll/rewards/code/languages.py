"""The languages that answers may be written in. A new one is a row in `LANGUAGES`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from roll.utils.sandbox.job import BOX, Job, Limits, View, own_python, view

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
    "checker": (
        *("names", "wire", "stand_ins", "raised", "remote"),
        *("absent", "pytest_stand_in", "fixtures", "units", "files"),
    ),
}


@dataclass(frozen=True)
class Python:
    """An interpreter and what it has to see. The run's own comes without the packages that are installed beside it."""

    command: tuple[str, ...]
    shown: tuple[str, ...]

    def job(self, script: str, solution: bytes, limits: Limits, *arguments: str, **more: bytes) -> Job:
        """Runs a guest's script; `more` are further files, their names with __ for the dot."""
        guests = {f"{name}.py": guest_source(name) for name in (*NEEDS[script], script)}
        named = {name.replace("__", "."): content for name, content in more.items()}
        return Job(
            (*self.command, f"{BOX}/{script}.py", *arguments),
            system_view(*self.shown),
            limits,
            {**guests, "solution.py": solution, **named},
            ENVIRONMENT,
        )


@cache
def system_view(*shown: str) -> View:
    return view(*shown)


@cache
def guest_source(name: str) -> bytes:
    return GUEST.joinpath(f"{name}.py").read_bytes()


@cache
def find_python(path: str | None = None) -> Python:
    """Raises OSError or CalledProcessError if `path` is no Python."""
    if path is None:
        own, shown = own_python()
        return Python((own, "-s", "-S", "-B"), shown)
    asked = subprocess.run([path, "-c", ASK_PYTHON], capture_output=True, text=True, check=True)
    prefix, base, real = asked.stdout.splitlines()
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
    """What this machine lacks for them."""
    found = []
    for name in languages:
        language = LANGUAGES[name]
        if language.needs is not None and not os.path.exists(language.needs):
            found.append(f"{name} needs {language.needs}, which is not there. Install it: {language.install}")
    return found
