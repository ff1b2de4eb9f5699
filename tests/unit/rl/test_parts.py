"""The parts of a step together: the order of its metrics and of its draws, and what a checkpoint holds of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.datasets.mixing import RowSource
from roll.distributed.executor import roles
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import AlgorithmError
from roll.features.expert_rows.mix import Mix
from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline
from roll.rl.mode import RLMode
from roll.rl.parts import ActorJob, Metrics, StepContext, StepPart, StepParts
from roll.run.saving.resume import RLState
from roll.types.batch import Rows, SampleSet
from roll.types.rollout import TrajectoryGroup
from roll.utils.timing import Timer
from tests.helpers.cases import cases
from tests.helpers.configs import config
from tests.unit.rl.rollouts.test_filtered_step import Clusters, Engine, Prepared, Trainer, by_rank, group

BATCH = {"training_args": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}}
CRITIC = {"strategy_args": {"strategy_name": "deepspeed_train"}, "device_mapping": [0], **BATCH}
MIX = {"rows": {"a": {"share": 0.25, "data_args": {"file_name": "x.jsonl"}}}}


class Remembering:
    """An operator of the user's that keeps all groups and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, groups: list[Any]) -> list[Any]:
        self.calls += 1
        return groups

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.calls = state["calls"]


OPERATORS = [
    {"name": "reward_shaping", "args": {"op": "multiply", "weight": 3.0}},
    {"name": f"{__name__}:Remembering"},
]


class Learner(Trainer):
    """Says what it was given, and has metrics."""

    def __init__(self, **metrics: float) -> None:
        super().__init__()
        self.metrics_of_training, self.scores = metrics, list[list[str]]()
        self.experts: list[Any] = []

    def train(
        self,
        samples: SampleSet,
        job: Any,
        scores: dict[str, object],
        meanwhile: Callable[[], object],
        expert: Any = None,
    ) -> dict[str, float]:
        super().train(samples, job, scores, meanwhile)
        self.scores.append(list(scores))
        self.experts.append(expert)
        return dict(self.metrics_of_training)

    def save_checkpoint(self, directory: Path) -> None: ...

    def save_hf_model(self, directory: Path) -> None: ...

    def load_checkpoint(self, directory: Path) -> None: ...


class Rollouts(Engine):
    waits_for_weights = False


class Saved(Prepared):
    """Groups that are given, and their state."""

    state_key = "groups"

    def metrics(self) -> dict[str, float]:
        return {"rollout/engine_restarts": 0.0}

    def rescore(self, groups: StepGroups, completed: Sequence[TrajectoryGroup], step: int) -> StepGroups:
        return groups

    def save(self, directory: Path, ends: bool = False) -> dict[str, Any]:
        return {"data": {"at": 3}, "groups": {"place": 0, "next": 2, "active": []}}

    def restore(self, directory: Path, groups: Any, step: int) -> int:
        assert groups == {"place": 0, "next": 2, "active": []}
        return 0


def rows() -> Rows:
    return Rows.of([[number] * 4 for number in range(8)], [[False, True, True, True]] * 8)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RLVRPipeline]]:
    """PPO with a critic, a reference, operators, an expert's rows and a filter."""
    monkeypatch.setattr("roll.distributed.executor.step_rows.share", by_rank)
    monkeypatch.setattr(roles.ray, "put", lambda rows: rows)
    made: list[RLVRPipeline] = []

    def one(**changes: Any) -> RLVRPipeline:
        given = config(
            {
                "output_dir": str(tmp_path),
                "rollout_batch_size": 4,
                "num_return_sequences_in_group": 2,
                "actor_train.device_mapping": [0],
                "actor_train.training_args.per_device_train_batch_size": 4,
                "actor_train.training_args.gradient_accumulation_steps": 1,
                "critic": CRITIC,
                "reference": {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [0]},
                "enable_reference": True,
                "add_token_level_kl": True,
                "adv_estimator": "gae",
                "mix": MIX,
                "experience_operators": OPERATORS,
                **changes,
            }
        )
        pipeline = RLVRPipeline(given, build_plan(given))
        fill_mix(pipeline)
        pipeline.timer = Timer()
        actor = Learner(
            kl_mean=0.5, loss=1.0, grad_norm=0.0, train_infer_log_prob_diff_mean=0.1, train_infer_log_prob_diff_max=0.2
        )
        pipeline.clusters = Clusters(  # type: ignore[assignment]
            actor_train=actor,
            critic=Learner(value_loss=2.0),
            actor_infer=Rollouts(),
            reference=Learner(),  # type: ignore[arg-type]
        )
        kept, dropped = [group(i, 1.0, 0.0) for i in (0, 1, 2)], [group(3, 0.0, 0.0)]
        pipeline.scheduler = Saved([StepGroups(kept, dropped)] * 3)  # type: ignore[assignment]
        made.append(pipeline)
        return pipeline

    yield one
    for pipeline in made:
        pipeline.close()


def fill_mix(pipeline: RLVRPipeline) -> None:
    for part in pipeline.parts:
        if isinstance(part, Mix):
            part.sources = {"a": RowSource(rows(), 1, True, "a")}


CREDIT = ("reward_mean", "reward_max", "reward_min", "reward_std", "group_reward_std_mean")
ROLLOUT = (
    *("failed_fraction", "truncated_fraction", "prompt_length_mean", "num_tokens", "response_length_mean"),
    *("response_length_max", "length_bias", "staleness_mean", "staleness_max"),
    *(*CREDIT, "group_equal_rewards_fraction", "dropped_groups", "kept_groups", "kept_groups_fraction"),
    *("trained_rows_fraction", "filter_length_bias", "engine_restarts"),
    *(f"kept_{name}" for name in (*CREDIT, "group_equal_rewards_fraction")),
)
TRAINED = (
    *("critic/value_loss", "rollout/duplicate_responses_fraction", "rollout/repeated_prompts_fraction"),
    *("actor/kl_mean", "actor/loss", "actor/grad_norm", "actor/kl_coef"),
    *("train_infer/log_prob_diff_mean", "train_infer/log_prob_diff_max"),
    *("actor/expert_weight", "actor/expert_rows", "actor/expert_tokens", "actor/expert_epochs/a", "actor/num_updates"),
    *("rollout/sampled_reward_mean", "sync/sent_bytes"),
)
STATE: dict[str, Any] = {
    "data": {"at": 3},
    "groups": {"place": 0, "next": 2, "active": []},
    "kl_coef": 0.2,
    "running_moments": {},
    "shaping": [
        {"at": "experience_operators[0]", "name": "reward_shaping", "state": {"stat": "reward", "domains": {}}},
        {"at": "experience_operators[1]", "name": f"{__name__}:Remembering", "state": {"calls": 2}},
    ],
    "mix": {"a": {"drawn": 4, "contents": "305f6418de3fe9a221a2feffb7cfee2d"}},
    "updates_per_step": {"actor_train": 2, "critic": 4},
    "models": {"actor_train": {}, "critic": {}},
}
"""What a run wrote before its step was made of parts, after two steps."""


def test_phases_and_metrics_come_in_their_order(make: Callable[..., RLVRPipeline]) -> None:
    """Of keys that two of them have, the later one's value counts: so the order decides values, too."""
    pipeline = make()
    metrics = pipeline.step(0)
    assert list(metrics) == [*(f"rollout/{name}" for name in ROLLOUT), *TRAINED]
    clusters: Any = pipeline.clusters
    assert clusters.actor_train.scores == clusters.critic.scores == [["old_log_probs", "ref_log_probs", "values"]]
    assert (metrics["rollout/reward_mean"], metrics["rollout/sampled_reward_mean"]) == (1.125, 0.375)
    pipeline = make()
    pipeline.step(0)
    assert [*pipeline.timer.metrics()] == [
        *("time/rollout_s", "time/gather_s", "time/score_s", "time/score/old_log_probs_s"),
        *("time/score/ref_log_probs_s", "time/score/values_s", "time/train_critic_s", "time/train_actor_s"),
        *("time/weight_sync_s", "time/other_s", "time/step_s"),
    ]
    pipeline, log = make(), list[str]()
    pipeline.parts = StepParts([Noting(log)])
    pipeline.scheduler = Saved([StepGroups([], [group(3, 0.0, 0.0)])])  # type: ignore[assignment]
    pipeline.step(0)
    assert log == ["after_rollout", "before_publish of version 0", "after_publish of version 1"]


def go_on(pipeline: RLVRPipeline, saved: Mapping[str, Any], directory: Path) -> None:
    RLState.model_validate(saved)
    pipeline.parts.resume(saved, directory)
    pipeline.restore(directory, saved, 2)


class Noting(StepPart):
    """Writes down when it is called."""

    def __init__(self, log: list[str], scores: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.log, self.given = log, scores

    def after_rollout(self, at: StepContext, groups: StepGroups) -> tuple[StepGroups, Metrics]:
        self.log.append("after_rollout")
        return groups, {"shaped": 1.0}

    def before_gather(self, at: StepContext, trained: Sequence[TrajectoryGroup]) -> None:
        self.log.append(f"before_gather {len(trained)}")

    def scores(self, at: StepContext, samples: Any) -> Mapping[str, Any]:
        self.log.append("scores")
        return self.given

    def before_training(self, at: StepContext, scores: Mapping[str, Any]) -> Metrics:
        self.log.append(f"before_training {sorted(scores)}")
        return {"probe": 1.0}

    def actor_job(self, at: StepContext, job: ActorJob) -> ActorJob:
        self.log.append("actor_job")
        return job

    def before_publish(self, at: StepContext, metrics: Metrics) -> None:
        self.log.append(f"before_publish of version {at.engine_version}")

    def after_publish(self, at: StepContext, metrics: Metrics) -> Metrics:
        self.log.append(f"after_publish of version {at.engine_version}")
        return {"ended": 1.0}


def test_parts_are_called_around_the_training_of_a_step(make: Callable[..., RLVRPipeline]) -> None:
    pipeline, log = make(), list[str]()
    pipeline.parts = StepParts([Noting(log, {"teacher_targets": None})])
    metrics = list(pipeline.step(0))
    assert log == [
        *("after_rollout", "before_gather 3", "scores"),
        "before_training ['old_log_probs', 'ref_log_probs', 'values']",
        *("actor_job", "before_publish of version 0", "after_publish of version 1"),
    ]
    own = [name for name in metrics if "/" not in name or name in ("critic/value_loss", "sync/sent_bytes")]
    assert own == ["probe", "critic/value_loss", "shaped", "sync/sent_bytes", "ended"]
    clusters: Any = pipeline.clusters
    assert "teacher_targets" in clusters.actor_train.scores[0] and "teacher_targets" not in clusters.critic.scores[0]


class Handing(RLMode):
    """Another process trains, in name."""

    hands_over = True

    def hand_over(self, step: int, groups: StepGroups) -> None:
        self.handed = (step, [each.group_id for each in groups.sampled])


def test_a_step_that_is_handed_over_looks_at_its_rollouts_and_trains_nothing(
    make: Callable[..., RLVRPipeline],
) -> None:
    pipeline, log = make(), list[str]()
    pipeline.parts = StepParts([Noting(log)])
    pipeline.mode = mode = Handing(pipeline.config, lambda: False)
    metrics = pipeline.step(0)
    assert log == ["after_rollout", "before_publish of version 0"]
    assert mode.handed == (0, [0, 1, 2, 3])
    assert not [name for name in metrics if name.startswith(("actor/", "critic/"))]
    assert [*pipeline.timer.metrics()][:3] == ["time/rollout_s", "time/hand_over_s", "time/weight_sync_s"]


@cases("parts, said")
def test_a_score_under_a_name_that_ranks_do_not_know_is_refused_before_they_train(
    parts: list[dict[str, None]], said: str, make: Callable[..., RLVRPipeline]
) -> None:
    pipeline = make()
    pipeline.parts = StepParts([Noting([], scores) for scores in parts])
    with pytest.raises(AlgorithmError, match=said):
        pipeline.step(0)
    clusters: Any = pipeline.clusters
    assert not clusters.actor_train.jobs and not clusters.critic.jobs


class Late:
    claims = ()

    def score(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        return list(groups)


def test_late_rewards_come_before_the_dump_and_the_operators(make: Callable[..., RLVRPipeline], tmp_path: Path) -> None:
    pipeline = make(rollout_mock={"enable": True, "dump_dir": str(tmp_path / "dump")})
    pipeline.late_rewards.use({"math": Late()}, lambda *claims: nullcontext())
    pipeline.step(0)
    first = ["time/rollout_s", "time/reward_s", "time/dump_s", "time/gather_s", "time/score_s"]
    assert [*pipeline.timer.metrics()][:5] == first
    assert [file.name for file in (tmp_path / "dump").iterdir()] == ["step_000001.npz"]


@cases("changes, parts")
def test_settings_say_which_parts_a_run_has(
    changes: dict[str, Any], parts: list[str], make: Callable[..., RLVRPipeline], tmp_path: Path
) -> None:
    if "rollout_mock" in changes:
        changes = {"rollout_mock": {**changes["rollout_mock"], "dump_dir": str(tmp_path)}}
    pipeline = make(**changes)
    assert [type(part).__name__ for part in pipeline.parts] == parts


@pytest.mark.parametrize("mode", ["explore", "train", "bench"])
def test_every_mode_has_its_parts(mode: str) -> None:
    """One that does not train has no plan of actor_train."""
    keys = {"mode": mode, "validation.data_args.file_name": "x.jsonl", "resume_from_checkpoint": False}
    made = config({**keys, "mix": MIX, "experience_operators": OPERATORS})
    pipeline = RLVRPipeline(made, build_plan(made))
    assert any(isinstance(part, Mix) for part in pipeline.parts) is made.has_training


def test_all_that_a_step_uses_is_there_from_construction(make: Callable[..., RLVRPipeline], tmp_path: Path) -> None:
    pipeline = make()
    before = {*vars(pipeline)}
    pipeline.step(0)
    pipeline.save(tmp_path)
    assert {*vars(pipeline)} == before
