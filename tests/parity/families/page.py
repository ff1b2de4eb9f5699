"""The page that says of each type of model what was tried with it: one row for each, written by `pytest
tests/parity/families --proof`. The figures are those of tests/parity/families/test_numbers.py, of the tests that ran;
the others stay. What is refused says the plan."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import ModelArgs
from roll.configs.strategies import packing
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_facts import DELTA_RULES, VLLM_NOT_ON_CPU, VLLM_REFUSED
from roll.configs.strategies.number_checks import number_problems
from roll.configs.tables.families import FAMILIES
from roll.configs.tables.roles import ROLES
from roll.features.exact.checks import exact_model_problems
from tests.parity.families.models import tiny_config

Column = Literal["padded", "packed", "hf_infer", "trees", "exact", "vllm", "updates"]
COLUMNS: tuple[Column, ...] = ("padded", "packed", "hf_infer", "trees", "exact", "vllm", "updates")
PAGE = Path(__file__).parents[3] / "reports" / "models.md"
HEAD = "| type | padded | packed | `hf_infer` | trees | exact | `vllm` on a CPU | three updates | `megatron_train` |"
NOT_RUN, UNTRIED = "not run", "untried"
_measured: dict[tuple[str, Column], float] = {}


def problems(directory: Path, role: str, packs: bool = False, shares: bool = False) -> list[str]:
    """What the plan says of the model's config.json."""
    worker = WorkerConfig(
        model_args=ModelArgs(model_name_or_path=str(directory), dtype="fp32"),
        use_sequence_packing=packs,
        use_prefix_sharing="on" if shares else "off",
    )
    choice = Choice(ROLES[role], worker)
    model = json.loads((directory / "config.json").read_text())
    return [found.text for found in (*number_problems(choice, model), *packing.model_problems(choice, model))]


def exact_problems(directory: Path) -> list[str]:
    """What the plan says of the model's config.json with `exact_log_probs`."""
    args = ModelArgs(model_name_or_path=str(directory), dtype="fp32")
    choice = Choice(ROLES["actor_train"], WorkerConfig(model_args=args))
    model = json.loads((directory / "config.json").read_text())
    return [*(found.text for found in exact_model_problems(choice, model)), *problems(directory, "actor_infer")]


def record(kind: str, column: Column, difference: float) -> None:
    """The largest that was seen: of log-probs, or of weights in the column of updates."""
    _measured[kind, column] = difference


def refusals(directory: Path) -> dict[Column, str]:
    """The cells of what the plan refuses for this model, in its words."""
    said: dict[Column, list[str]] = {
        "padded": problems(directory, "actor_train"),
        "packed": problems(directory, "actor_train", packs=True),
        "hf_infer": problems(directory, "actor_infer"),
        "trees": problems(directory, "actor_train", shares=True),
        "exact": exact_problems(directory),
    }
    refused: dict[Column, str] = {column: f"refused: {_reason(texts[0])}" for column, texts in said.items() if texts}
    kind = json.loads((directory / "config.json").read_text())["model_type"]
    if why := {**VLLM_REFUSED, **VLLM_NOT_ON_CPU}.get(kind):
        refused["vllm"] = f"refused: {why}"
    return refused


def _reason(text: str) -> str:
    found = re.search(r" (?:which has|whose config\.json has|model with) (.*?)\. (?:Set|Use) ", text)
    assert found, text
    return found[1].removesuffix(", which see past the end of a row")


def cells(kind: str, refused: dict[Column, str], old: dict[Column, str]) -> tuple[str, ...]:
    """The row of a type, behind its name: what is refused, what was measured now, or what stood there (`old`)."""

    def cell(column: Column) -> str:
        if column in refused:
            return refused[column]
        seen, none = _measured.get((kind, column)), UNTRIED if column == "vllm" else NOT_RUN
        text = old.get(column, none) if seen is None else f"{seen:.0e}".replace("e-0", "e-")
        return none if text.startswith("refused") else text

    family = FAMILIES.get(kind)
    why_not = "refused: gated delta nets" if kind in DELTA_RULES else "refused: no family"
    megatron = "proven" if family is not None and family.megatron is not None else why_not
    return (*map(cell, COLUMNS), megatron)


def rows(kinds: Iterable[str], old: Mapping[str, tuple[str, ...]], folder: Path) -> dict[str, tuple[str, ...]]:
    """The rows of these types. `folder`: for their config.json."""
    found = {}
    for kind in kinds:
        tiny_config(kind).save_pretrained(folder)
        before: dict[Column, str] = dict(zip(COLUMNS, old.get(kind, ()), strict=False))
        found[kind] = cells(kind, refusals(folder), before)
    return found


def update(kinds: Iterable[str], folder: Path) -> None:
    """Writes the page with what was measured in this process."""
    if _measured:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(write(text, rows(kinds, read(text), folder)), encoding="utf-8")


def read(page: str) -> dict[str, tuple[str, ...]]:
    """The rows of a page, by type."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    return {first.strip("`"): tuple(rest) for first, *rest in lines}


def write(page: str, found: Mapping[str, tuple[str, ...]]) -> str:
    """The page with these rows in place of its own."""
    lines = [HEAD, "|---" * 9 + "|", *(f"| `{kind}` | {' | '.join(row)} |" for kind, row in sorted(found.items()))]
    return page[: page.index(HEAD)] + "\n".join(lines) + "\n"
