"""What a run tells its clusters in which order, when engines die and at the end."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.distributed.executor import clusters as run_clusters
from roll.distributed.executor.clusters import RLClusters, RunClusters
from roll.distributed.executor.worker import build_strategy
from roll.errors import StrategyError
from roll.platforms.table import CUDA
from tests.helpers.configs import config


class Script:
    """Takes note of what it is told."""

    def __init__(self, has_died: bool = False):
        self.has_died = has_died
        self.told: list[str] = []
        self.is_lost = False

    def __getattr__(self, name: str) -> Any:
        def note(*arguments: object, **named: object) -> None:
            self.told.append(name)

        return note

    def heal(self) -> bool:
        self.told.append("heal")
        return self.has_died


def published(has_died: bool) -> list[str]:
    script = Script(has_died)
    clusters = RLClusters.__new__(RLClusters)
    clusters.__dict__ |= {"engines": {"actor_infer": script}, "weight_sync": script}
    clusters.publish_weights(1)
    return script.told


def test_an_engine_that_died_is_back_before_the_others_stand_still_for_weights() -> None:
    assert published(has_died=False) == ["heal", "publish_healing"]
    assert published(has_died=True) == ["heal", "renew", "publish_healing"]


@pytest.mark.parametrize(("mode", "target"), [("both", ("q_proj",)), ("bench", ())])
def test_an_exact_engine_has_adapters_where_a_trainer_sends_them(
    mode: str, target: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    exact = {"exact_log_probs": True, "actor_train.model_args.lora_target": "q_proj", "mode": mode}
    strategy = built_engine(exact, monkeypatch, tmp_path)
    assert strategy.role.model_args.lora_target == target and strategy.context.adapter_rank == 8


def test_a_worker_refuses_what_its_node_would_change_of_its_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray of another node was started in another shell than the run."""
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with pytest.raises(
        StrategyError, match="^NVIDIA_TF32_OVERRIDE is set in the shell or image, and actor_infer would"
    ):
        built_engine({}, monkeypatch, tmp_path)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    built_engine({}, monkeypatch, tmp_path)


def built_engine(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, directory: Path, name: str = "actor_infer"
) -> "Taken":
    made = config({"actor_infer.strategy_args.strategy_name": "hf_infer"} | changes)
    monkeypatch.setattr(run_clusters, "Cluster", lambda role, resources, slots, spec: SimpleNamespace(spec=spec))
    clusters = RunClusters.__new__(RunClusters)
    slots = [SimpleNamespace(rank=0, local_rank=0, gpu_ids=("0",), platform=CUDA)]
    resources = SimpleNamespace(slots=lambda place: slots, has_gpus=True)
    runtime = SimpleNamespace(directory=directory)
    clusters.__dict__ |= {"_config": made, "_plan": build_plan(made), "_clusters": []}
    clusters.__dict__ |= {"resources": resources, "runtime": runtime}
    ((blueprint, _),) = clusters._cluster(name, made.model_roles[name]).spec.arguments
    return build_strategy(replace(blueprint, strategy_class=f"{__name__}:Taken", device="cpu"))


class Taken(SimpleNamespace):
    """What a strategy is built from."""

    def __init__(self, role: Any, context: Any):
        super().__init__(role=role, context=context)


def test_devices_are_given_back_while_ray_is_there() -> None:
    script, clusters = Script(), RunClusters.__new__(RunClusters)
    parts = {
        "resources": script,
        "runtime": script,
        "_recoveries": [script],
        "_clusters": [],
        "_pools": [script],
        "_records": Script(),
    }
    clusters.__dict__ |= parts | {"_config": SimpleNamespace(logging_dir="logs")}
    clusters.close()
    assert script.told == ["close", "kill", "join", "release", "shutdown"]


def test_without_ray_nothing_is_asked_of_workers_at_the_end() -> None:
    script, clusters = Script(), RunClusters.__new__(RunClusters)
    parts = {"resources": script, "runtime": script, "_recoveries": [], "_clusters": [script], "_pools": [script]}
    clusters.__dict__ |= parts
    script.is_lost = True
    clusters.close()
    assert script.told == ["shutdown"]
