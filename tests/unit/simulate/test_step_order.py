"""The model of the step enters the phases of the real one, and asks for the same devices, in the same order."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from roll.configs.plan.batch_plan import RolloutBounds, build_plan
from roll.distributed.scheduler.event_loop import run_virtually
from roll.distributed.scheduler.rollout_core import RolloutCore, StepGroups
from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline
from roll.simulate.fleet import Fleet
from roll.simulate.simulation import SimulatedRollouter
from roll.simulate.step_model import StepModel
from roll.utils.timing import Timer
from tests.helpers.configs import config
from tests.unit.rl.rollouts.test_filtered_step import Clusters, Engine, Prepared, Trainer, by_rank, group
from tests.unit.simulate.schedules import setup

Entered = tuple[str, ...]


class Named(Trainer):
    def __init__(self, name: str):
        super().__init__()
        self.everything = self.weights = name  # type: ignore[misc]


class NamedEngine(Engine):
    everything = weights = "actor_infer"  # type: ignore[assignment]
    waits_for_weights = False


class Writing:
    """A placement that writes down who is asked for."""

    def __init__(self, entered: list[Entered]):
        self._entered = entered

    def hold(self, *needs: str) -> AbstractContextManager[None]:
        self._entered.append(("hold", *needs))
        return nullcontext()

    def reserved(self, *needs: str) -> AbstractContextManager[None]:
        self._entered.append(("kept free", *needs))
        return nullcontext()


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RLVRPipeline]:
    """PPO with a reference and several updates, so that every pass is made."""
    monkeypatch.setattr("roll.distributed.executor.step_rows.share", by_rank)
    changes: dict[str, Any] = {
        "output_dir": str(tmp_path),
        "rollout_batch_size": 2,
        "num_return_sequences_in_group": 2,
        "actor_train.device_mapping": [0],
        "actor_train.training_args.per_device_train_batch_size": 2,
        "actor_train.training_args.gradient_accumulation_steps": 1,
        "critic": {
            "strategy_args": {"strategy_name": "deepspeed_train"},
            "device_mapping": [0],
            "training_args": {"per_device_train_batch_size": 2},
        },
        "reference": {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [0]},
        "enable_reference": True,
        "adv_estimator": "gae",
    }
    given = config(changes)
    made = RLVRPipeline(given, build_plan(given))
    assert made.plan.old_log_probs.source == "pass"
    yield made
    made.close()


def of_the_pipeline(pipeline: RLVRPipeline, groups: StepGroups) -> list[Entered]:
    entered: list[Entered] = []
    pipeline.timer = Timer(on_enter=lambda phase: entered.append(("phase", phase)))
    reference = Named("reference")
    pipeline.clusters = Clusters(  # type: ignore[assignment]
        actor_train=Named("actor_train"),
        critic=Named("critic"),
        actor_infer=NamedEngine(),
        reference=reference,  # type: ignore[arg-type]
        placement=Writing(entered),  # type: ignore[arg-type]
    )
    pipeline.scheduler = Prepared([groups])  # type: ignore[assignment]
    pipeline.step(0)
    return entered


class WritingModel(StepModel):
    entered: list[Entered]

    @asynccontextmanager
    async def hold(self, *roles: str, samples: bool = False) -> AsyncIterator[None]:
        self.entered.append(("hold", *roles))
        async with super().hold(*roles, samples=samples):
            yield

    @asynccontextmanager
    async def reserved(self, *roles: str) -> AsyncIterator[None]:
        self.entered.append(("kept free", *roles))
        async with super().reserved(*roles):
            yield


def of_the_model(keeps: bool) -> list[Entered]:
    passes = {"old_log_probs": 1, "ref_log_probs": 1, "values": 1}
    made = setup([[1, 1]], RolloutBounds(2), passes=passes, trains_critic=True)

    async def work() -> list[Entered]:
        fleet = Fleet(made.costs, 1, None)
        core = RolloutCore(SimulatedRollouter(fleet, made.workload, 2).run_group, made.bounds, lambda group: keeps)
        model = WritingModel(made, core, fleet)
        model.entered = []
        model.timer = Timer(
            asyncio.get_running_loop().time, on_enter=lambda phase: model.entered.append(("phase", phase))
        )
        await model.step(0)
        return model.entered

    return run_virtually(work())


def test_a_step_that_trains(pipeline: RLVRPipeline) -> None:
    entered = of_the_pipeline(pipeline, StepGroups([group(0, 1.0, 0.0), group(1, 0.0, 1.0)], []))
    assert entered == of_the_model(keeps=True)
    assert [what for kind, *what in entered if kind == "phase"][-1] == ["weight_sync"] and len(entered) == 17


def test_a_step_of_which_nothing_is_kept(pipeline: RLVRPipeline) -> None:
    entered = of_the_pipeline(pipeline, StepGroups([], [group(0, 1.0, 1.0), group(1, 0.0, 0.0)]))
    assert entered == of_the_model(keeps=False) and len(entered) == 6
