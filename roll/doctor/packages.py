"""Packages and their versions: against the locks of a checkout, or what an installed roll-rl asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from importlib.util import find_spec
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from roll.doctor.finding import Finding
from roll.utils.imports import code_folder

DISTRIBUTION = "roll-rl"
_MOST_NAMED = 8
_CUDA = re.compile(r"^cuda\b[^=]*= *'([\d.]+)'", re.MULTILINE)


@dataclass(frozen=True)
class Against:
    """An environment held against a lock. `other`: name, version here, version there."""

    lock: str
    equal: int
    missing: tuple[str, ...]
    other: tuple[tuple[str, str, str], ...]


def package_findings() -> Iterator[Finding]:
    here = installed()
    locks = sorted(Path(home, "requirements").glob("*.txt")) if (home := code_folder()) is not None else []
    if locks:
        yield from lock_findings([compared(lock.stem, pins(lock), here) for lock in locks])
        return
    try:
        asked = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        yield Finding("hint", f"no lock and no distribution {DISTRIBUTION} to hold versions against")
        return
    yield from metadata_findings(map(Requirement, asked), here)


def installed() -> dict[str, str]:
    """Version by name, as PEP 503 spells it, without what builds add to it (+cpu)."""
    return {
        canonicalize_name(name): str(found.version).partition("+")[0]
        for found in distributions()
        if (name := found.metadata["Name"])
    }


def pins(lock: Path) -> dict[str, str]:
    """Version by name of what a lock has for this Python and this machine."""
    found: dict[str, str] = {}
    for line in lock.read_text(encoding="utf-8").splitlines():
        pin, _, condition = (part.strip() for part in line.partition(" ;"))
        name, is_pin, wanted = pin.partition("==")
        if is_pin and not line.startswith("#") and (not condition or Marker(condition).evaluate()):
            found[canonicalize_name(name)] = wanted
    return found


def compared(lock: str, wanted: Mapping[str, str], here: Mapping[str, str]) -> Against:
    there = {name: here[name] for name in wanted if name in here}
    return Against(
        lock,
        equal=sum(there[name] == wanted[name] for name in there),
        missing=tuple(name for name in wanted if name not in here),
        other=tuple((name, there[name], wanted[name]) for name in there if there[name] != wanted[name]),
    )


def lock_findings(all_locks: Sequence[Against]) -> Iterator[Finding]:
    """Compares the environment with the most similar lock: the one with the most equal versions, then the fewest
    missing packages."""
    nearest = max(all_locks, key=lambda one: (one.equal, -len(one.missing)))
    file = f"requirements/{nearest.lock}.txt"
    count = nearest.equal + len(nearest.missing) + len(nearest.other)
    if not nearest.missing and not nearest.other:
        yield Finding("ok", f"all {count} packages match {file}")
        return
    install = f"pip install --no-deps -r {file}"
    if nearest.other:
        named = [f"{name} {here} (there {wanted})" for name, here, wanted in nearest.other]
        yield Finding("hint", f"{len(named)} of {count} packages are of other versions: {_some(named)}", file, install)
    if nearest.missing:
        named = list(nearest.missing)
        yield Finding("hint", f"{len(named)} of {count} packages are not installed: {_some(named)}", file, install)


def metadata_findings(asked: Iterable[Requirement], here: Mapping[str, str]) -> Iterator[Finding]:
    """What is missing or out of range: a problem of what every run needs, a hint of what an extra asks for."""
    wrong = 0
    for requirement in asked:
        marker, name = requirement.marker, canonicalize_name(requirement.name)
        is_core = marker is None or marker.evaluate({"extra": ""})
        found = here.get(name)
        if (found is None and not is_core) or (found is not None and found in requirement.specifier):
            continue
        wrong += 1
        what = f"{name} is not installed" if found is None else f"{name} is {found}"
        fix = f"pip install '{name}{requirement.specifier}'"
        yield Finding("problem" if is_core else "hint", f"{what}, and {requirement.specifier} is needed", fix=fix)
    if not wrong:
        yield Finding("ok", f"packages match the requirements of {DISTRIBUTION} {version(DISTRIBUTION)}")


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True)
class TorchBuild:
    """`cuda`: its version, such as 13.0; empty for a build without."""

    version: str
    cuda: str


def torch_build() -> TorchBuild | None:
    """What its files say; nothing of it is imported."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    told = _CUDA.search((Path(spec.origin).parent / "version.py").read_text(encoding="utf-8"))
    return TorchBuild(version("torch"), told[1] if told else "")


def torch_findings() -> Iterator[Finding]:
    build = torch_build()
    if build is None:
        fix = "pip install torch, from https://download.pytorch.org/whl/cpu without GPUs (docs/install.md)"
        yield Finding("problem", "torch is not installed", fix=fix)
    else:
        yield Finding(
            "ok", f"torch {build.version}, {f'built for CUDA {build.cuda}' if build.cuda else 'without CUDA'}"
        )
