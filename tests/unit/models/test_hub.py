"""Models by id on another hub: fetched once, under the hub's own package, and refused where that is not there."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from roll.configs.sections.model import ModelArgs
from roll.errors import ConfigError
from roll.models.hub import local_model
from roll.models.tokenizer import tokenizer_of
from roll.run.start.preflight import machine_report
from tests.helpers.configs import config

ON_MODELSCOPE = {"model_download_type": "modelscope", "pretrain": "Owner/Model"}


@pytest.fixture
def hub(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """ModelScope's package, with one model. What it was asked for."""
    asked: list[str] = []

    def snapshot_download(model_id: str) -> str:
        asked.append(model_id)
        if model_id != "Owner/Model":
            raise ValueError("404")
        return str(tiny_model_dir)

    package = ModuleType("modelscope")
    package.__dict__["snapshot_download"] = snapshot_download
    monkeypatch.setitem(sys.modules, "modelscope", package)
    return asked


def test_every_role_with_a_model_looks_on_the_hub_of_the_run() -> None:
    made = config({**ON_MODELSCOPE, "reference.model_args.download_type": "HUGGINGFACE_HUB"})
    assert made.actor_train.model_args.download_type == made.actor_infer.model_args.download_type == "MODELSCOPE"
    assert made.reference is not None
    assert made.reference.model_args.download_type == "HUGGINGFACE_HUB"
    assert config({"pretrain": "Owner/Model"}).actor_train.model_args.download_type is None


def test_an_id_of_modelscope_becomes_its_directory(hub: list[str], tiny_model_dir: Path) -> None:
    args = config(ON_MODELSCOPE).actor_train.model_args
    assert local_model(args) == args.model_copy(update={"model_name_or_path": str(tiny_model_dir)})
    assert len(tokenizer_of(args)) > 256
    assert hub == ["Owner/Model"] * 2


def test_paths_and_ids_of_the_other_hub_stay_as_they_are(hub: list[str], tiny_model_dir: Path) -> None:
    for args in (
        ModelArgs(model_name_or_path=str(tiny_model_dir), download_type="MODELSCOPE"),
        ModelArgs(model_name_or_path="Owner/Model"),
        ModelArgs(model_name_or_path="Owner/Model", download_type="HUGGINGFACE_HUB"),
    ):
        assert local_model(args) == args
    assert hub == []


def test_an_id_that_is_not_there_says_so(hub: list[str]) -> None:
    with pytest.raises(ConfigError, match="MODELSCOPE has no Owner/Other for this machine: ValueError: 404. Correct"):
        local_model(ModelArgs(model_name_or_path="Owner/Other", download_type="MODELSCOPE"))


def test_without_the_package_the_run_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modelscope", None)
    monkeypatch.setattr("roll.run.start.preflight.is_installed", lambda module: module != "modelscope")
    said = "model_download_type: MODELSCOPE needs the package modelscope, which"
    report = machine_report(config(ON_MODELSCOPE))
    assert [p.text for p in report.problems if "modelscope" in p.text] == [
        f"{said} is not installed. Install it: pip install modelscope"
    ]
    with pytest.raises(ConfigError, match=f"{said} cannot be imported: .*Install it: pip install modelscope"):
        local_model(config(ON_MODELSCOPE).actor_train.model_args)
