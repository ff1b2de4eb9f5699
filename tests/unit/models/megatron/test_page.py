"""docs/adding_a_model.md: the family that it shows is the one that is there, and its table has every family."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from transformers import PretrainedConfig

from roll.configs.tables.families import FAMILIES
from roll.models.megatron import families
from roll.utils.imports import resolve
from tests.helpers.pages import DOCS, importable, snippets


def test_the_family_of_the_page_is_qwen3(tmp_path: Path) -> None:
    entry, line = snippets("adding_a_model.md", "python")
    table = f"from roll.configs.tables.families import Family, MegatronForm\n\nLINES = {{{line}}}\n"
    (tmp_path / "shown_family.py").write_text(entry)
    (tmp_path / "shown_table.py").write_text(table)
    with importable(tmp_path):
        shown: Any = resolve("shown_family:FAMILIES")
        lines = resolve("shown_table:LINES")
    family, own = shown["qwen3"], families.FAMILIES["qwen3"]
    assert {key: (type(rule), rule.names) for key, rule in family.layer_weights.items()} == {
        key: (type(rule), rule.names) for key, rule in own.layer_weights.items()
    }
    assert family.settings(PretrainedConfig()) == own.settings(PretrainedConfig())
    assert lines == {"qwen3": FAMILIES["qwen3"]}


def test_the_table_of_the_page_has_every_family() -> None:
    table = (DOCS / "adding_a_model.md").read_text("utf-8").partition("## Which families there are")[2]
    names = {family.megatron.name for family in FAMILIES.values() if family.megatron is not None}
    assert [name for name in sorted(names) if f"`{name}`" not in table.partition("\n\n-")[0]] == []
