"""All stages of a YAML, checked and planned before the first of them starts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from roll.configs.load.loader import Composed, RawTree, resolve_tree
from roll.configs.problems import Problem
from roll.configs.sections.run import RESUME_WORDS
from roll.errors import ConfigError
from roll.run.kind import kind_of
from roll.run.spec import PipelineSpec
from roll.run.stages.entries import STAGES, Entry, give_places, leave_out, read_entries, stage_tree
from roll.run.stages.handover import (
    MODEL,
    StageModel,
    model_key,
    origin,
    receivers,
    with_models,
)
from roll.run.start.load import Loaded, check

# What is wrong with stages, said once each and with its place.


class StageProblems:
    """Findings of several stages, each with its stage, unless all of them have it."""

    def __init__(self, num_stages: int):
        self._num_stages = num_stages
        self._stages: dict[str, list[Entry]] = {}

    @contextmanager
    def about(self, entry: Entry) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            self.add(entry, error.problems)

    def add(self, entry: Entry, texts: Iterable[str]) -> None:
        for text in dict.fromkeys(texts):
            self._stages.setdefault(text, []).append(entry)

    @property
    def texts(self) -> list[str]:
        return [self._placed(text, entries) for text, entries in self._stages.items()]

    def raise_all(self) -> None:
        if self._stages:
            raise ConfigError(*self.texts)

    def _placed(self, text: str, entries: list[Entry]) -> str:
        if len(entries) == self._num_stages > 1:
            return text
        return f"{' and '.join(f'{STAGES}[{entry.number - 1}] ({entry.name})' for entry in entries)}: {text}"


_RESUME = "resume_from_checkpoint"
_UNKNOWN = "unknown/model"  # of a stage with problems of its own


@dataclass(frozen=True)
class Stage:
    """`loaded` has, in the place of models that earlier stages will leave, those that these begin with: they are of the
    same shape. `shown` names them. `models`: the stage whose model it is, by role. `left_out`: keys
    of the YAML that its kind of run does not know. `afresh`: nothing may be there yet."""

    entry: Entry
    spec: PipelineSpec
    composed: Composed
    left_out: tuple[str, ...]
    loaded: Loaded
    shown: Loaded
    models: Mapping[str, str]
    afresh: bool

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def givers(self) -> frozenset[str]:
        return frozenset(self.models.values())

    @property
    def stand_ins(self) -> frozenset[str]:
        """The keys of models that are not there yet: what is found about them says nothing."""
        return frozenset(f"{role}.{MODEL}" for role in self.models)

    def over(self, checkpoints: Mapping[str, str]) -> Loaded:
        """Return the settings of the stage, given the last checkpoints of earlier stages by their names."""
        models = {role: f"{checkpoints[name]}/hf_model" for role, name in self.models.items()}
        settings = with_models(self.composed.settings, models, self.entry)
        return check(self.spec, replace(self.composed, settings=settings))

    def lines(self, num_stages: int) -> Iterator[str]:
        yield f"Stage {self.entry.number} of {num_stages}: {self.name}, a run of the kind {self.spec.name}"
        for name in sorted(self.givers):
            if roles := [role for role in self.loaded.config.model_roles if self.models.get(role) == name]:
                yield f"  {', '.join(roles)}: the model that {name} leaves"
        if self.left_out:
            yield f"  not of this kind of run, and left out: {', '.join(self.left_out)}"


def plan_stages(raw: RawTree, overrides: Sequence[str], script: str | None) -> list[Stage]:
    """The stages of a YAML. `script`: the kind of those that name none. ConfigError with every problem of every
    stage."""
    entries = read_entries(raw.tree, overrides)
    problems = StageProblems(len(entries))
    kinds: list[tuple[Entry, RawTree, PipelineSpec]] = []
    for entry in entries:
        with problems.about(entry):
            tree = stage_tree(raw, entry)
            kinds.append((entry, tree, kind_of(tree.tree, script)))
    problems.raise_all()
    stages: list[Stage] = []
    givers: list[StageModel] = []
    specs = [spec for _, _, spec in kinds]
    for entry, tree, spec in kinds:
        giver = StageModel(entry.name, model_key(spec.config_class()), _UNKNOWN)
        with problems.about(entry):
            stage = _stage(entry, tree, spec, specs, givers)
            stages.append(stage)
            giver = replace(giver, origin=origin(stage.loaded.config))
        givers.append(giver)
    problems.raise_all()
    return stages


def _stage(
    entry: Entry,
    tree: RawTree,
    spec: PipelineSpec,
    specs: Sequence[PipelineSpec],
    givers: Sequence[StageModel],
) -> Stage:
    composed = resolve_tree(tree, spec.config_class())
    settings = composed.settings
    left_out = leave_out(spec.config_class(), [other.config_class() for other in specs], settings, entry)
    give_places(settings, entry)
    afresh = _goes_on(settings)
    for giver in givers:  # a key that only an earlier stage answers
        if giver.key is not None and settings.get(giver.key) is None:
            settings[giver.key] = giver.origin
    named = {giver.name: giver.origin for giver in givers}
    wanted = {role: named[name] for role, name in entry.settings.models.items() if role in settings and name in named}
    asked = replace(composed, settings=with_models(settings, wanted, entry))
    roles = receivers(check(spec, asked).config, entry, givers)
    origins = {role: giver.origin for role, giver in roles.items()}
    loaded = check(spec, replace(composed, settings=with_models(settings, origins, entry)))
    if problems := list(_saving_problems(loaded)):
        raise ConfigError(*map(str, problems))
    models = {role: giver.name for role, giver in roles.items()}
    stage = Stage(entry, spec, composed, tuple(left_out), loaded, loaded, models, afresh)
    return replace(stage, shown=stage.over({name: f"of {name}" for name in stage.givers}))


def _goes_on(settings: dict[str, object]) -> bool:
    """Lets the stage go on from what it left; True if nothing may be there."""
    value = settings.get(_RESUME)
    known = RESUME_WORDS.get(value.lower(), value) if isinstance(value, str) else value
    if known is not None and not isinstance(known, bool):
        raise ConfigError(
            f"{_RESUME}: stages resume by themselves. Remove it, or write false to refuse checkpoints that are there "
            "already."
        )
    settings[_RESUME] = True
    return known is False


def _saving_problems(loaded: Loaded) -> Iterator[Problem]:
    if loaded.config.save_steps <= 0:
        yield Problem(
            f"save_steps: {loaded.config.save_steps} saves nothing. The next stage starts from a stage's last "
            "checkpoint, which also shows that it is finished. Set a number of steps.",
            ("save_steps",),
        )
