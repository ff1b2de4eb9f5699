"""The command: from options and a YAML to the numbers, and what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from roll.commands.table import main as roll
from roll.configs.load.loader import compose_tree, resolve_tree, yaml_at
from roll.configs.plan.batch_plan import BatchPlan, RolloutBounds
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.run.kind import kind_of
from roll.run.start.load import check
from roll.simulate.forecast.forecast import simulated
from roll.simulate.setup import Costs, Devices, LogNormal, Setup

TINY_SORT = str(Path(__file__).resolve().parents[3] / "examples" / "tiny-sort" / "tiny_sort.yaml")
ROWS = ["per_device_train_batch_size=2", "gradient_accumulation_steps=4"]
SMALL = ["rollout_batch_size=4", "num_return_sequences_in_group=2"]
SMALL += [f"actor_train.training_args.{row}" for row in ROWS]


def made(*overrides: str) -> Setup:
    raw = compose_tree(*yaml_at(TINY_SORT), overrides)
    spec = kind_of(raw.tree)
    loaded = check(spec, resolve_tree(raw, spec.config_class()))
    assert isinstance(loaded.config, AlgorithmConfig) and isinstance(loaded.plan, BatchPlan)
    return simulated(loaded.config, loaded.plan)


def test_a_yaml_and_its_overrides_describe_the_run() -> None:
    setup = made(*SMALL, "async_generation_ratio=0.6", "response_length=400")
    assert setup.bounds == RolloutBounds(4, ahead=3, max_staleness=1) and setup.devices == Devices(1, 1)
    assert setup.costs == Costs()  # no model is there
    keys = ("response_length=24", "max_running_requests=64", "enable_old_logprobs_recompute=true")
    setup = made(*keys)
    assert (setup.bounds, setup.group_size, setup.max_running) == (RolloutBounds(32), 8, 64)
    assert setup.devices == Devices(1, 1) and not setup.trains_critic and setup.passes == {"old_log_probs": 1}
    assert isinstance(setup.workload, LogNormal) and (setup.workload.cap, setup.workload.prompt) == (24, 16)
    partly = ("num_gpus_per_node=2", "actor_infer.device_mapping=[0,1]", "async_generation_ratio=0.5")
    devices = made(*partly).devices
    assert devices == Devices(1, 2, common=1) and (devices.num_leaving, devices.total) == (1, 2)
    assert made(*partly, "partial_gpu_mode=false").devices == Devices(1, 2, common=1, leaving=2)
    assert str(Devices.shared(8, train=2)) == "2 of 8"


def test_what_is_printed_names_the_run_its_phases_and_the_gain(capsys: pytest.CaptureFixture[str]) -> None:
    assert roll(["simulate", TINY_SORT, *SMALL, "async_generation_ratio=0.5", "--steps", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 groups of 2; devices 1 + 1, 1 engine; 2 groups ahead, at most 1 step old"
    labels = ["step", "engines", "trainer", "staleness", "trained tokens", "gain"]
    assert [line.split("  ")[0] for line in lines[-6:]] == labels
    assert "train_actor" in lines[-6] and "x of" in lines[-1]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["async_generation_ratio=2", "max_staleness=1"], "in flight"),
        (["rollout_batch_size=-3"], "rollout_batch_size"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert roll(["simulate", TINY_SORT, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_kind_of_run_that_samples_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert roll(["simulate", TINY_SORT.replace("tiny_sort.yaml", "tiny_sort_sft.yaml")]) == 2
    assert "samples nothing to simulate" in capsys.readouterr().err


def test_a_simulation_needs_neither_torch_nor_ray() -> None:
    code = (
        "import sys; from roll.commands.table import main; "
        f"status = main(['simulate', {TINY_SORT!r}, *{SMALL!r}]); "
        "print(status, *[name for name in ('torch', 'ray', 'transformers', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0"
