"""A damaged configuration through the real command line, in this process, and what may come of it."""

import contextlib
import copy
import gc
import io
import random
import re
import signal
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from roll.commands import run as cli
from roll.configs.load import loader
from roll.configs.load.yaml_file import read_yaml
from tests.fuzz.mutations import Draft, Mutation, mutated, mutations, overrides

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAME = "fuzz"
HANG_S = 60.0
QUIET = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)  # Python shows none of these
LONGEST_MESSAGE = 3000


class Hang(BaseException):
    """A dry run that did not end: no `except Exception` may take it for something else."""


@dataclass(frozen=True)
class Case:
    """One shipped YAML and the changes made to it."""

    example: str
    changes: tuple[Mutation, ...]

    @classmethod
    def of(cls, seed: int, sharing: int = 1) -> "Case":
        """The case of a seed. So many neighbours are one YAML, each but the first with overrides of its own."""
        rng = random.Random(seed - seed % sharing)
        example, changes = rng.choice(sorted(examples())), mutations(rng)
        return cls(example, changes + (overrides(random.Random(seed)) if seed % sharing else ()))

    def draft(self) -> Draft:
        return mutated(copy.deepcopy(examples()[self.example]), self.changes)


@cache
def examples() -> dict[str, dict[str, Any]]:
    """All shipped YAMLs that are whole configurations, by their path below examples/. Those that change another one's
    keys would not find it in the folder of a case."""
    paths = [path for path in sorted(EXAMPLES.glob("*/*.yaml")) if path.parent.name not in ("config", "launch")]
    read = {str(path.relative_to(EXAMPLES)): read_yaml(path) for path in paths}
    return {path: keys for path, keys in read.items() if all("config/" in name for name in keys.get("defaults", ()))}


def pipeline_of(example: str) -> str:
    keys = examples()[example]
    sections = {
        "custom_envs": "agentic", "sft_train": "sft", "reward_train": "rm", "student": "distill", "rewards": "rlvr",
        "actor_infer": "rlvr",
    }  # fmt: skip
    return next((kind for section, kind in sections.items() if section in keys), "dpo")


def fault_of(case: Case, directory: Path) -> str | None:
    """What is wrong with how the dry run of a case ended; None if nothing is."""
    draft = case.draft()
    (directory / f"{NAME}.yaml").write_bytes(draft.data)
    # as a terminal in UTF-8 has them: what it cannot hold ends a print
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=how) for how in ("strict", "backslashreplace"))
    arguments = [f"--config_path={directory}", f"--config_name={NAME}", "--dry_run", *draft.overrides]
    try:
        with _garbage_left(), warnings.catch_warnings(record=True) as warned, _within(HANG_S):
            warnings.simplefilter("always")
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = cli.main(pipeline_of(case.example), arguments)
    except Hang:
        return f"no end within {HANG_S:g} s:\n{traceback.format_exc(limit=-12)}"
    except SystemExit as error:
        return f"exit by {error!r}"
    except Exception:
        return traceback.format_exc(limit=-12)
    shown = [stream.buffer.getvalue().decode() for stream in (out, err) if not stream.flush()]  # type: ignore[attr-defined]
    noise = [str(item.message) for item in warned if not issubclass(item.category, QUIET)]
    return f"Python warnings: {noise}" if noise else _fault_of_output(code, *shown)


@contextlib.contextmanager
def compositions_shared() -> Iterator[None]:
    """Lets Hydra, which takes most of a dry run's time, compose a YAML once, whatever the overrides."""
    compose = loader._compose  # pyright: ignore[reportPrivateUsage]
    known: dict[bytes, dict[str, Any]] = {}

    def composed(directory: Path, name: str, *rest: Any) -> dict[str, Any]:
        content = (directory / f"{name}.yaml").read_bytes()
        if content not in known:
            known[content] = compose(directory, name, *rest)
        return copy.deepcopy(known[content])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "_compose", composed)
        yield


def _fault_of_output(code: int, out: str, err: str) -> str | None:
    if "Traceback" in out + err:
        return f"a traceback in the output:\n{out}{err}"
    if code == 0:
        return None if out.endswith("The plan works.\n") and not err else f"exit 0 with\n{out[-500:]}{err}"
    if code != 2:
        return f"exit code {code} with\n{out[-500:]}{err}"
    title, *messages = err.rstrip("\n").split("\n  - ")
    if title != "The run cannot start:" or not messages:
        return f"exit 2 with\n{out[-500:]}{err}"
    nameless = [text for text in messages if not re.search(r"[A-Za-z_~.'\"]{2,}", text)]
    too_long = [text[:200] for text in messages if len(text) > LONGEST_MESSAGE]
    return f"messages without a place: {nameless}, too long: {too_long}" if nameless or too_long else None


@contextlib.contextmanager
def _garbage_left() -> Iterator[None]:
    """What other tests left behind warns when it is collected, of coroutines that were never awaited for example."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raises Hang in the main thread after so long."""

    def alarm(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def report(seed: int, case: Case, fault: str) -> str:
    """All that is needed to see a fault again."""
    draft = case.draft()
    changes = ", ".join(map(str, case.changes))
    text = draft.data.decode(errors="backslashreplace")
    return (
        f"seed {seed}: {case.example} after {changes}\noverrides: {draft.overrides}\n{fault}\n"
        f"--- {NAME}.yaml\n{text[:6000]}"
    )
