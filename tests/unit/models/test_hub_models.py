"""Hub ids become directories, once."""

import os
import threading
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from roll.distributed.executor import clusters as run_clusters
from roll.distributed.executor.clusters import RunClusters
from roll.errors import ConfigError
from roll.models import hub
from roll.models.hub import fetch_models, with_directories
from tests.helpers.configs import config

LOOKS_INTO_THE_CACHE = hub._is_cached


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path) -> Path:
    """A cache of the hub that holds org/model, as the hub's own library lays it out. The hub is off in tests."""
    place = tmp_path / "cache" / "models--org--model"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc123")
    (place / "snapshots").mkdir()
    (place / "snapshots" / "abc123").symlink_to(tiny_model_dir)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "_is_cached", LOOKS_INTO_THE_CACHE)
    return place / "snapshots" / "abc123"


def test_a_cached_model_needs_no_network_and_a_missing_one_is_refused(cache: Path, tiny_model_dir: Path) -> None:
    found = fetch_models(["org/model", str(tiny_model_dir), "./model", "org/model"])
    assert found == {"org/model": str(cache)}
    del cache
    with pytest.raises(ConfigError, match=r"org/other is not a directory .* \(hf download org/other --local-dir ...\)"):
        fetch_models(["org/other"])


def test_only_an_id_in_the_cache_or_at_the_hub_can_be_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def head(name: str, kind: str) -> str:
        asked.append(name)
        return "" if name == "org/there" else f"the hub has no {kind} of this name"

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_head", head)
    problems = hub.hub_problems({"org/model": "model", "org/there": "model", "org/rows": "dataset"})
    assert list(problems) == ["org/rows"] and sorted(asked) == ["org/rows", "org/there"]
    assert problems["org/rows"].startswith("org/rows is not on this machine, and the hub has no dataset of this name.")


@pytest.mark.parametrize("loads", [True, False])
def test_a_silent_hub_is_waited_for_once_and_not_asked_again(
    loads: bool, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "ANSWER_S", 0.05)
    monkeypatch.setattr(hub, "_head", lambda name, kind: str(over.wait()))
    problems = hub.hub_problems({"org/model": "model", "a/b": "model", "c/d": "model"}, loads)
    assert list(problems) == ["a/b", "c/d"] and "did not answer within 0.05 s" in problems["c/d"]
    assert (os.environ["HF_HUB_OFFLINE"] == "1") is huggingface_hub.constants.HF_HUB_OFFLINE is loads
    assert fetch_models(["org/model"]) == {"org/model": str(cache)} if loads else True
    over.set()


def test_files_that_are_not_loaded_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        huggingface_hub.HfApi, "list_repo_files", lambda self, name: ["model.safetensors", "pytorch_model.bin"]
    )
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **keys: asked.append(keys) or "/cache/it")
    assert fetch_models(["org/model"]) == {"org/model": "/cache/it"}
    (keys,) = asked
    assert {"*.bin", "*.gguf", "original/*"} <= {*keys["ignore_patterns"]}


def test_directories_stand_in_every_section_and_nothing_else_changes() -> None:
    made = config({"actor_train.model_args": {"tokenizer_path": "org/tokens"}, "rewards.math.model_args": {}})
    changed = with_directories(made, {"org/model": "/cache/model", "org/tokens": "/cache/tokens"})
    for worker in (changed.actor_train, changed.actor_infer):
        assert worker.model_args.model_name_or_path == "/cache/model"
        assert worker.model_args.tokenizer_path == "/cache/tokens"
    assert changed.pretrain == "org/model"
    assert changed.model_fields_set == made.model_fields_set | {"actor_train", "actor_infer"}
    assert changed.rewards == made.rewards
    assert with_directories(made, {}) == made


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_workers_of_a_run_of_one_node_get_directories_and_the_model_is_asked_for_once(
    num_nodes: int, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt  # Ray is not started here

    asked: list[list[str]] = []
    monkeypatch.setattr(run_clusters, "RayRuntime", stop)
    monkeypatch.setattr(run_clusters, "fetch_models", lambda names: asked.append(names) or fetch_models(names))
    clusters = RunClusters.__new__(RunClusters)
    made = config({"num_nodes": num_nodes})
    with pytest.raises(KeyboardInterrupt):
        clusters.__init__(made, None)  # type: ignore[misc,arg-type]
    names = {worker.model_args.model_name_or_path for worker in clusters.config.model_roles.values()}
    assert names == ({str(cache)} if num_nodes == 1 else {"org/model"})
    assert len(asked) == (1 if num_nodes == 1 else 0)
    assert made.actor_train.model_args.model_name_or_path == "org/model"
