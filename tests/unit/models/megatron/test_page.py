"""docs/adding_a_model.md: the family that it shows is the one that is there, and its table has every family."""

from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from transformers import PretrainedConfig

from roll.configs.tables.families import FAMILIES
from roll.models.megatron.families import qwen3
from roll.models.megatron.family import Family
from roll.utils.imports import resolve
from tests.helpers.pages import DOCS, importable, snippets


def test_the_family_of_the_page_is_qwen3(tmp_path: Path) -> None:
    whole_file, line = snippets("adding_a_model.md", "python")
    table = f"from roll.configs.tables.families import Family, MegatronForm\n\nLINES = {{{line}}}\n"
    (tmp_path / "shown_family.py").write_text(whole_file)
    (tmp_path / "shown_table.py").write_text(table)
    with importable(tmp_path):
        family, lines = cast(Family, resolve("shown_family:FAMILY")), resolve("shown_table:LINES")
    assert family.layer_weights == qwen3.FAMILY.layer_weights
    assert family.settings(PretrainedConfig()) == qwen3.FAMILY.settings(PretrainedConfig())
    assert lines == {"qwen3": FAMILIES["qwen3"]}


def test_the_table_of_the_page_has_every_family() -> None:
    table = (DOCS / "adding_a_model.md").read_text("utf-8").partition("## Which families there are")[2]
    files = {family.megatron.file for family in FAMILIES.values() if family.megatron is not None}
    assert [file for file in sorted(files) if f"`{file}`" not in table.partition("\n\n-")[0]] == []
