"""Operators of Data-Juicer through its package: here through a stand-in with the three names that are used of it
(load_ops, NestedDataset, an operator's run), as its documentation has them. The package itself is not installed in the
environment of the tests, so what its operators do is not proven."""

import sys
import types
from typing import Any

import pytest

from roll.configs.sections.data import DataArgs
from roll.configs.sections.operators import DataJuicerArgs
from roll.errors import ConfigError
from roll.features.operators.checks import missing_packages, run_op
from tests.unit.features.operators.rows import context, rows


class Op:
    def __init__(self, name: str, args: dict[str, Any]):
        self.name, self.args = name, args

    def run(self, data: Any) -> Any:
        if self.name == "text_length_filter":
            return data.filter(lambda row: len(row["text"]) <= self.args["max_len"])
        return data.map(lambda row: {"text": row["text"].strip()})


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="Data-Juicer's data sets are of the package datasets")
    names = ("data_juicer", "data_juicer.ops", "data_juicer.core", "data_juicer.core.data")
    modules: dict[str, Any] = {name: types.ModuleType(name) for name in names}
    modules["data_juicer.ops"].load_ops = lambda found: [Op(*next(iter(found[0].items())))]
    modules["data_juicer.core.data"].NestedDataset = lambda data: data
    for name, module in modules.items():
        module.__spec__ = types.SimpleNamespace(name=name)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("package")
def test_rows_that_an_operator_leaves_out_go() -> None:
    args = DataJuicerArgs(op_args={"max_len": 2})
    assert run_op(rows("a", "bbb"), args, context(op="text_length_filter")) == [None, "left out by text_length_filter"]


@pytest.mark.usefixtures("package")
def test_texts_that_it_changes_are_the_columns_and_of_no_column_are_refused() -> None:
    some = rows("a", " b ")
    op = context(op="whitespace_mapper")
    assert run_op(some, DataJuicerArgs(column="prompt"), op) == [None, {"prompt": "b"}]
    with pytest.raises(ConfigError, match="whitespace_mapper changes texts"):
        run_op(some, DataJuicerArgs(), op)


@pytest.mark.usefixtures("package")
def test_an_operator_that_fails_is_named() -> None:
    with pytest.raises(ConfigError, match=r"x.operators\[0\]: text_length_filter of Data-Juicer failed: KeyError"):
        run_op(rows("a"), DataJuicerArgs(), context(op="text_length_filter"))


def test_where_the_package_is_missing_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll.features.operators.checks.is_installed", lambda name: False)
    args = DataArgs.model_validate({"operators": ["data_juicer:text_length_filter"]})
    (problem,) = missing_packages({"x": args})
    assert problem.text.startswith("x.operators[0]: operators of Data-Juicer need its package")
    assert "pip install py-data-juicer" in problem.text
