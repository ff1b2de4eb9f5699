"""Settings that go to engines as dictionaries, where pyright cannot see them: does the installed release have them?

`make lint` checks imports and calls against the engines that are installed, and those are the locks' versions for GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.deepspeed import KNOWN_KEYS
from roll.configs.strategies.table import spec_of
from roll.configs.strategies.tested import rules
from roll.distributed.strategy.deepspeed.rank import scoring_config, training_config
from roll.distributed.strategy.sglang.args import engine_arguments as sglang_arguments
from roll.distributed.strategy.sglang.generate import to_sglang
from roll.distributed.strategy.vllm import args as vllm_args
from roll.types.rollout import SamplingParams
from tests.layout.source import REPOSITORY
from tools.make_locks import FOLDER, pins

LOCK_OF = {"vllm": "cuda-vllm", "sglang": "cuda-sglang", "megatron-core": "cuda-megatron", "deepspeed": "cuda-vllm"}


@pytest.mark.parametrize(("package", "lock"), LOCK_OF.items())
def test_the_lock_for_gpus_has_the_version_that_lint_and_tests_see(package: str, lock: str) -> None:
    here = pins(FOLDER / "cpu-all.txt")
    assert pins(FOLDER / f"{lock}.txt")[package] == here.get(package, here.get(f"{package}-cpu"))


@pytest.mark.slow
def test_arguments_of_vllm_are_in_its_release() -> None:
    """Those that we set, that we refuse, that have a range here, and that shipped configurations give."""
    arguments = pytest.importorskip("vllm.engine.arg_utils", reason="vllm is not installed")
    ours = {*vllm_args.engine_arguments(role("vllm"), False, 1), *vllm_args.engine_arguments(role("vllm"), True, 1)}
    assert named("vllm") | ours | {*vllm_args._SIZES} <= arguments.AsyncEngineArgs.__dataclass_fields__.keys()


@pytest.mark.slow
def test_arguments_and_sampling_parameters_of_sglang_are_in_its_release() -> None:
    arguments = pytest.importorskip("sglang.srt.server_args", reason="sglang is not installed")
    ours = {*sglang_arguments(role("sglang"), False, 1), *sglang_arguments(role("sglang"), True, 1)}
    assert named("sglang") | ours <= arguments.ServerArgs.__annotations__.keys()
    from sglang.srt.sampling.sampling_params import SamplingParams as Theirs

    Theirs(**to_sglang(SamplingParams(8), 0))


@pytest.mark.slow
def test_keys_of_deepspeed_are_in_its_release() -> None:
    """Those that we let pass, and those that shipped fragments become."""
    deepspeed = pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    source = "".join(path.read_text() for path in Path(deepspeed.__file__).parent.rglob("*.py")).replace("'", '"')
    keys = {key for section in KNOWN_KEYS.values() for key in section} | {*written_to_deepspeed()}
    assert [key for key in sorted(keys) if f'"{key}"' not in source and f"{key}:" not in source] == []


def role(strategy: str, **changes: Any) -> WorkerConfig:
    settings = {"strategy_name": strategy, "strategy_config": changes}
    return WorkerConfig.model_validate({"model_args": {"model_name_or_path": "/models/m"}, "strategy_args": settings})


def named(strategy: str) -> set[str]:
    share = spec_of(strategy).share
    assert share is not None
    shipped = (yaml.safe_load(path.read_text()) for path in (REPOSITORY / "examples").rglob("*.yaml"))
    given = {key for tree in shipped for key in given_in(tree, strategy)}
    return {*rules(strategy, "arguments"), *spec_of(strategy).limit_keys, share.name} | given


def given_in(tree: Any, strategy: str) -> Iterator[str]:
    if isinstance(tree, Mapping):
        if tree.get("strategy_name") == strategy and isinstance(tree.get("strategy_config"), Mapping):
            yield from tree["strategy_config"]
        for value in tree.values():
            yield from given_in(value, strategy)


def written_to_deepspeed() -> Iterator[str]:
    plan = TrainPlan("actor_train", 64, 4, 2, 8, 1, 10, 0, 3)
    for path in sorted((REPOSITORY / "examples" / "config").glob("deepspeed_*.yaml")):
        (fragment,) = yaml.safe_load(path.read_text()).values()
        yield from keys_of(training_config(role("deepspeed_train", **fragment), plan).json)
        yield from keys_of(scoring_config(role("deepspeed_train", **fragment)).json)


def keys_of(tree: Any) -> Iterator[str]:
    if isinstance(tree, Mapping):
        yield from tree
        for value in tree.values():
            yield from keys_of(value)
