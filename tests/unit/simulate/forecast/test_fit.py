"""`roll fit`: what it tries, what it leaves out, and the YAML that it writes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.commands.table import main
from roll.configs.load.loader import compose_tree, resolve_tree, yaml_at
from roll.errors import ConfigError
from roll.run.kind import kind_of
from roll.run.start.load import check
from roll.simulate.forecast import fit
from roll.simulate.forecast.fit import _differing, run
from tests.unit.simulate.forecast.plans import CPUS, MODEL, loaded

WIDE = MODEL | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24, "num_attention_heads": 16}
TWO: dict[str, Any] = {"num_gpus_per_node": 2, "platform": "cuda", "rollout_batch_size": 16} | {
    role: {"strategy_args": {"strategy_name": name}, "device_mapping": [0, 1], "model_args": {"dtype": "bf16"}}
    for role, name in (("actor_train", "fsdp2_train"), ("actor_infer", "vllm"))
}


def test_only_keys_that_differ_are_chosen() -> None:
    assert _differing({"a": 1, "b": {"c": 2, "d": 3}, "e": {"f": 4}}, {"a": 1, "b": {"c": 2}, "e": {"f": 4}}) == {
        "b": {"d": 3}
    }


def test_layouts_of_gpus_are_ranked_by_seconds_and_the_yaml_is_a_plan(tmp_path: Path) -> None:
    loaded(tmp_path, model=WIDE, **TWO)
    out = tmp_path / "best.yaml"
    options = ["--gpus", "2", "--gpu", "h100", "--out", str(out)]
    lines = list(run([str(tmp_path / "run.yaml"), *options, "actor_train.training_args.learning_rate=0.5"]))
    seconds = [float(line.split()[1]) for line in lines if line[:1].isdigit() and line.split()[2] == "s"]
    assert 2 <= len(seconds) <= 5 and seconds == sorted(seconds) and "1 x 2 H100" in lines[0]
    tree = yaml.safe_load(out.read_text())
    assert tree["defaults"] == ["run@_here_", "_self_"] and "pretrain" not in tree
    raw = compose_tree(*yaml_at(str(out)), ())
    spec = kind_of(raw.tree)
    assert raw.tree["actor_train"]["training_args"]["learning_rate"] == 0.5
    plan = check(spec, resolve_tree(raw, spec.config_class())).plan
    assert plan.trains["actor_train"].samples_per_update == 64


@pytest.mark.parametrize("name", ["run.yaml", "best.txt", "no-folder/best.yaml"])
def test_a_file_that_cannot_be_written_on_top_is_refused_before_the_search(tmp_path: Path, name: str) -> None:
    loaded(tmp_path, **TWO)
    before = (tmp_path / "run.yaml").read_text()
    with pytest.raises(ConfigError, match="--out: "):
        list(run([str(tmp_path / "run.yaml"), "--gpus", "2", "--gpu", "H100", "--out", str(tmp_path / name)]))
    assert (tmp_path / "run.yaml").read_text() == before


def test_what_does_not_fit_is_counted_and_nothing_is_an_error(tmp_path: Path) -> None:
    loaded(tmp_path, model=WIDE, gpu_memory_gb=4, **TWO)
    with pytest.raises(ConfigError, match=r"No layout of .* fits: .* x does not fit in memory"):
        list(run([str(tmp_path / "run.yaml"), "--gpus", "2", "--gpu", "H100"]))


def test_on_cpus_it_tries_rollouts_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fit, "hardware_of", lambda *_: CPUS)
    loaded(tmp_path)
    assert main(["fit", str(tmp_path / "run.yaml")]) == 0
    shown = capsys.readouterr().out
    assert "2 cores" in shown and "ration_ratio: 1" in shown and "error bar" in shown
