"""Checks that the models of a run whose rows show pictures see them, and alike."""

from collections.abc import Collection

from roll.configs.checks.pictures import picture_problems, sight_problems
from roll.configs.sections.run import RunConfig
from roll.configs.tables.sight import VisionModel
from roll.errors import ConfigError
from roll.models.vision.files import vision_of
from roll.run.start.machine import lacks_gpus


def check_shown(
    config: RunConfig, learner: str, vision: VisionModel | None, at: str | None = None, of_text: Collection[str] = ()
) -> None:
    """Raises ConfigError where the run's rows show pictures and a role cannot take them: `learner` says how many tokens
    each has, and every model has to agree, but for reward models, which may read rows in their own way. `at`: the key
    that brings pictures; None: the rows of `learner`. `of_text`: roles whose rows show none. A plan asks the same
    questions of the files that are here."""
    seen = {
        name: vision if name == learner else vision_of(worker.model_args)
        for name, worker in config.model_roles.items()
        if not config.roles[name].is_apart and name not in of_text
    }
    problems = [
        *picture_problems(config, learner, at),
        *sight_problems(config, learner, seen, lacks_gpus(config), of_text),
    ]
    if problems:
        raise ConfigError(*problems)
