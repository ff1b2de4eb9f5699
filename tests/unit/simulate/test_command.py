"""The command: from options and a YAML to the numbers, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from roll.commands.table import main as roll
from roll.configs.plan.batch_plan import RolloutBounds
from roll.simulate.from_options import setup_of
from roll.simulate.options import parser
from roll.simulate.setup import Costs, Devices, Setup, write_costs
from roll.simulate.simulation import candidates, frontier, search
from roll.simulate.workload import LogNormal

SMALL = ["--groups", "4", "--group_size", "2", "--cap", "400", "--devices", "2", "--steps", "2"]
FOLDER = str(Path(__file__).resolve().parents[3] / "examples" / "tiny-sort")
TINY_SORT = ["--config_path", FOLDER, "--config_name", "tiny_sort"]


def made(*arguments: str) -> Setup:
    return setup_of(*parser().parse_known_args(["play", *arguments]))


def test_a_yaml_or_options_describe_the_run() -> None:
    setup = made(*SMALL, "--train_devices", "1", "--async_generation_ratio", "0.6", "--seed", "5", "--turns", "3")
    assert setup.bounds == RolloutBounds(4, ahead=3, max_staleness=1) and setup.devices == Devices(1, 1)
    assert isinstance(setup.workload, LogNormal) and (setup.workload.seed, setup.workload.turns) == (5, 3)
    assert setup.workload.median == pytest.approx(400 * 2200 / 16_384)
    setup = made(*TINY_SORT, "response_length=24", "max_running_requests=64", "enable_old_logprobs_recompute=true")
    assert (setup.bounds, setup.group_size, setup.max_running) == (RolloutBounds(32), 8, 64)
    assert setup.devices == Devices(1, 1) and not setup.trains_critic and setup.passes == {"old_log_probs": 1}
    assert isinstance(setup.workload, LogNormal) and (setup.workload.cap, setup.workload.prompt) == (24, 16)
    partly = (*TINY_SORT, "num_gpus_per_node=2", "actor_infer.device_mapping=[0,1]", "async_generation_ratio=0.5")
    devices = made(*partly).devices
    assert devices == Devices(1, 2, common=1) and (devices.num_leaving, devices.total) == (1, 2)
    assert made(*partly, "partial_gpu_mode=false").devices == Devices(1, 2, common=1, leaving=2)
    assert made("--shared", "--devices", "8", "--train_devices", "2").devices == Devices.shared(8, train=2)
    assert str(Devices.shared(8, train=2)) == "2 of 8"


def test_what_is_printed_names_the_run_its_phases_and_the_gain(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_costs(tmp_path / "costs.json", Costs(publish_s=0.5), {})
    trace = tmp_path / "trace.json"
    options = ["--shared", "--async_generation_ratio", "0.5", "--calibration", str(tmp_path / "costs.json")]
    assert roll(["simulate", "play", *SMALL, *options, "--trace", str(trace)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 groups of 2; devices shared 2, 2 engines; 2 groups ahead, at most 1 step old"
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "step", "engines", "trainer", "staleness", "trained tokens", "length bias", "gain"
    ]  # fmt: skip
    assert ", weight_sync 0.5" in lines[1] and "x of" in lines[-1]
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_search_marks_what_nothing_beats(capsys: pytest.CaptureFixture[str]) -> None:
    assert roll(["simulate", "search", *SMALL, "--ratios", "0", "1", "--train_shares", "0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 3 * 3 + 1  # shared, split, half shared: synchronous, and one ahead at staleness 1 and 2
    assert sum(line.endswith("<") for line in lines[1:-1]) >= 1


def test_candidates_are_those_that_can_meet_their_deadlines_and_the_frontier_falls() -> None:
    base = made(*SMALL, "--devices", "8", "--devices_per_engine", "2")
    found = list(candidates(base, [0.0, 0.5, 2.0], [0.1, 0.5, 0.9]))
    assert [str(devices) for devices in dict.fromkeys(setup.devices for _, setup in found)] == [
        "shared 8", "2 + 6", "2 of 8", "4 + 4", "4 of 8"
    ]  # fmt: skip
    assert {(ratio, setup.bounds.max_staleness) for ratio, setup in found} == {
        (0.0, 0), (0.5, 1), (0.5, 2), (2.0, 2), (2.0, 3)
    }  # fmt: skip
    best = frontier(list(search(made(*SMALL), [0.0, 1.0], [0.5], 2)))
    ages = [one.report.staleness_mean for one in best]
    seconds = [one.report.step_s for one in best]
    assert ages == sorted(ages) and seconds == sorted(seconds, reverse=True) and best[0].ratio == 0.0


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["play", "--async_generation_ratio", "2", "--max_staleness", "1"], "384 groups would be in flight"),
        (["play", "rollout_batch_size=3"], "rollout_batch_size=3: there is no such option"),
        (["play", "--calibration", "missing.json"], "--calibration missing.json: there is no such file"),
        (["play", "--lengths", "missing"], "--lengths missing: no group of rollouts is there"),
        (
            ["play", "--devices", "3", "--devices_per_engine", "2"],
            "and the engines whole ones",
        ),
        (["play", "--config_path", FOLDER, "--config_name", "tiny"], "there is no tiny.yaml"),
        (["play", *TINY_SORT, "rollout_batch_size=-3"], "rollout_batch_size"),
        (["play", *TINY_SORT, "--pipeline", "sft"], ""),
        (["calibrate", "--run", "none", "--out", "costs.json"], "0 steps of training are in its metrics.jsonl"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert roll(["simulate", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["play", "--groups", "0"], ["play", "--steps", "many"], ["nothing"]])
def test_options_that_are_none_are_refused_with_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        roll(["simulate", *arguments])
    assert ended.value.code == 2


def test_a_simulation_needs_neither_torch_nor_ray() -> None:
    code = (
        "import sys; from roll.commands.table import main; "
        f"status = main(['simulate', 'play', *{SMALL + TINY_SORT!r}]); "
        "print(status, *[name for name in ('torch', 'ray', 'transformers', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0"
