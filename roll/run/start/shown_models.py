"""Checks that the models of a run whose rows show pictures see them, and alike."""

from __future__ import annotations

from collections.abc import Collection

from roll.configs.checks.pictures import picture_problems, sight_problems
from roll.configs.sections.run import RunConfig
from roll.configs.tables.vision import VisionModel
from roll.errors import ConfigError
from roll.models.vision.files import vision_of
from roll.run.start.choose import lacks_gpus


def check_shown(
    config: RunConfig, learner: str, vision: VisionModel | None, at: str | None = None, of_text: Collection[str] = ()
) -> None:
    """Raises ConfigError where the run's rows show pictures and a role cannot take them: `learner` says how many tokens
    each has, and every model has to agree, but for reward models, which may read rows in their own way. `at`: the key
    that brings pictures; None: the rows of `learner`. `of_text`: roles whose rows show none."""
    problems = [*picture_problems(config, learner, at), *sight_problems(config, vision, lacks_gpus(config), of_text)]
    for name, worker in config.model_roles.items():
        role = config.roles[name]
        if role.is_apart or name in of_text:
            continue
        model = vision if name == learner else vision_of(worker.model_args)
        if model is None:
            problems.append(f"{name}: the rows show pictures, which its model does not see. Take one that does")
        elif role.head != "sequence" and vision is not None and not model.counts_as(vision):
            problems.append(
                f"{name}: the rows show pictures, of which its model makes other tokens ({model.sizes.unit}, id "
                f"{model.image_token}) than that of {learner} ({vision.sizes.unit}, id "
                f"{vision.image_token}). Take models of one family"
            )
    if problems:
        raise ConfigError(*problems)
