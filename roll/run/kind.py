"""Kind of run that a YAML describes: it says so, its script knows, or its keys tell."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.problems import SLIP, Problem, nearest
from roll.configs.sections.run import RunConfig
from roll.configs.tables.presets import kind_of_algorithm
from roll.errors import ConfigError
from roll.run.spec import KIND_BY_KEY, PIPELINES, PipelineSpec, pipeline_of
from roll.utils.text import show


def kind_of(tree: Mapping[str, Any], script: str | None = None) -> PipelineSpec:
    """The kind that the key `pipeline` of a raw tree names, or else its script's, or that of its `algorithm`, or the
    one whose key it has. Raises ConfigError where nothing tells, with the keys that may be misspelt."""
    written = tree.get("pipeline")
    if written is not None and not isinstance(written, str):
        raise ConfigError(f"pipeline: {show(written)} must be the name of a kind of run: {', '.join(PIPELINES)}.")
    named = written or script or kind_of_algorithm(tree.get("algorithm"))
    named = next((KIND_BY_KEY[key] for key in KIND_BY_KEY if key in tree), None) if named in (None, "rl") else named
    if named is None:
        raise ConfigError(
            *_slips(tree),
            f"pipeline is missing, and no key tells what kind of run it is. Set pipeline to {' or '.join(PIPELINES)}.",
        )
    return pipeline_of(named)


def _slips(tree: Mapping[str, Any]) -> list[str]:
    """Return a problem for each key that may be misspelt for one that tells the kind. It may be one of the settings
    all the same, as `reward` is."""
    matches = {key: nearest(str(key), KIND_BY_KEY, cutoff=SLIP) for key in tree}
    return [f"{key} tells no kind of run. Did you mean {match}?" for key, match in matches.items() if match]


def other_kind(spec: PipelineSpec, config: RunConfig) -> Iterator[Problem]:
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
