"""One stage after the other, each a run of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roll.errors import StorageError
from roll.run.stages.planned import Stage
from roll.run.stages.progress import Left, begin, check_sound, left_by
from roll.run.start.load import Loaded


def run_stages(stages: Sequence[Stage], before: Callable[[Stage, Loaded], None]) -> int:
    """Runs what is not finished, and returns the exit code of the first run that does not end well, or 0. `before` each
    run raises ConfigError for what stands against it on this machine: of models that were not there, it is known only
    now."""
    left: dict[str, Left] = {}
    for stage in stages:
        found = left_by(stage)
        if found is None or not found.is_finished:
            for name in stage.givers:
                check_sound(next(each for each in stages if each.name == name), left[name])
            loaded = stage.over({name: str(left[name].path) for name in stage.givers})
            before(stage, loaded)
            if found is None:
                begin(stage, left)
            if code := int(stage.spec.make_run(loaded.config, loaded.plan).run()):
                return code
            found = left_by(stage)
            if found is None or not found.is_finished:
                raise StorageError(
                    f"{stage.name} ended, and {stage.loaded.config.checkpoint_dir} does not have its last step"
                )
        left[stage.name] = found
    return 0
