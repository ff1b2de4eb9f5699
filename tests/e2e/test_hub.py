"""A run that sends its models to a hub, where they arrive as they were saved."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.hub import own_variables, running_hub
from tests.helpers.runs import Run


@pytest.mark.slow
def test_the_last_model_of_a_run_is_on_the_hub_when_it_ends(
    sort_data: Path, start_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_hub() as hub:
        for name, value in own_variables(hub.address).items():
            monkeypatch.setenv(name, value)
        run = start_run(
            sort_data, "tiny_sort", "max_steps=3", "eval_steps=-1", "save_steps=2", "max_ckpt_to_keep=1",
            "checkpoint_config.hub_model_id=someone/sorter",
        )  # fmt: skip
        assert run.wait() == 0, run.text
        model = run.output_dir / "checkpoints" / "step_000003" / "hf_model"
        saved = {str(path.relative_to(model)): path.read_bytes() for path in model.rglob("*") if path.is_file()}
        assert "model.safetensors" in saved and hub.files == saved
        assert hub.message == "Step 3 of tiny_sort"
        assert "Step 3 of tiny_sort is on the hub: " in run.text
        assert [path.name for path in (run.output_dir / "checkpoints").iterdir()] == ["step_000003"]
