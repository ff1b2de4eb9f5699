"""Kind of run that a YAML describes: it says so, its script knows, or its keys tell."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.base import Settings
from roll.configs.load.aliases import foreign_keys
from roll.configs.load.inert_keys import known_keys
from roll.configs.problems import Problem
from roll.configs.sections.run import RunConfig
from roll.configs.tables.presets import kind_of_algorithm
from roll.errors import ConfigError
from roll.run.spec import PIPELINES, PipelineSpec, pipeline_of
from roll.utils.text import show


def kind_of(tree: Mapping[str, Any], script: str | None = None) -> PipelineSpec:
    """The kind that the key `pipeline` of a raw tree names, or else its script's, or that of its `algorithm`, or the
    one of this package that knows most of its keys. Raises ConfigError where nothing tells."""
    written = tree.get("pipeline")
    if written is not None and not isinstance(written, str):
        raise ConfigError(f"pipeline: {show(written)} must be the name of a kind of run: {', '.join(PIPELINES)}.")
    named = written or script or kind_of_algorithm(tree.get("algorithm"))
    return pipeline_of(named) if named and named != "rl" else _whose_keys(tree)


def other_kind(spec: PipelineSpec, config: RunConfig) -> Iterator[Problem]:
    """Yield a problem if a YAML of one kind is started as another."""
    if config.pipeline is None:
        return
    try:
        is_other = pipeline_of(config.pipeline) != spec
    except ConfigError as error:
        yield from (Problem(text, ("pipeline",)) for text in error.problems)
        return
    if is_other:
        yield Problem(
            f"pipeline: {config.pipeline}, but this starts a run of kind {spec.name}. Start it with `roll run`, or "
            "with the script of its kind.",
            ("pipeline",),
        )


def spellings(settings: type[Settings]) -> frozenset[str]:
    """All keys that a section may have, those of other systems included."""
    return frozenset(known_keys(settings)) | foreign_keys(settings)


def _whose_keys(tree: Mapping[str, Any]) -> PipelineSpec:
    """The kind that has most of the sections; if several do, the one of them that knows most keys. Sections come
    first, since a fragment may bring variables that are keys of another kind."""

    def unknown(spec: PipelineSpec) -> tuple[int, int]:
        settings = spec.config_class()
        sections = {key for key, value in tree.items() if isinstance(value, Mapping)}
        return len(sections - settings.model_fields.keys()), len(tree.keys() - spellings(settings))

    counts = {spec.name: unknown(spec) for spec in PIPELINES.values()}
    fitting = [name for name, count in counts.items() if count == min(counts.values())]
    if len(fitting) > 1:
        raise ConfigError(
            f"pipeline is missing, and the keys fit {' and '.join(fitting)} equally. Set it: pipeline: {fitting[0]}."
        )
    return PIPELINES[fitting[0]]
