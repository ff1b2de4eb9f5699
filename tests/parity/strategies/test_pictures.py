"""Training and scoring on rows with pictures, against Hugging Face (eager attention, its own processor and positions)
and torch.optim.AdamW in one process, which sees each row alone and unpadded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from roll.algorithms.loss import SupervisedLoss
from roll.configs.sections.model import ModelArgs
from roll.configs.tables.sight import SEES
from roll.distributed.strategy.hf.sampler import BatchSampler
from roll.models.loading import load_policy
from roll.models.vision import inputs
from roll.models.vision.inputs import PictureInputs
from roll.types.batch import MicroBatch
from roll.types.rollout import GenerationRequest, SamplingParams
from tests.helpers.cases import cases
from tests.helpers.processes import RankError, RankPool
from tests.parity.compare import PARAMETER_TOLERANCE, assert_same_training
from tests.parity.strategies import runs, shown
from tests.parity.strategies.adapters import LORA, an_adapter
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, join, train_reference
from tests.parity.strategies.runs import Run

Pools = Callable[[int], RankPool]
FAMILIES = (
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "qwen3_5", "qwen3_5_moe", "qwen3_vl_moe", "glm4v_moe"),
    *("gemma3", "internvl"),
)
TRAINERS: dict[str, tuple[int, dict[str, Any]]] = {
    "zero0-x1": (1, {"stage": 0}),
    "zero2-x2": (2, {"stage": 2}),
    "zero3-x2": (2, {"stage": 3}),
    "zero3-x2-packed": (2, {"stage": 3, "packs": True}),
    "fsdp2-x1": (1, {"fsdp2": {}}),
    "fsdp2-x2": (2, {"fsdp2": {}}),
    "fsdp2-x2-packed": (2, {"fsdp2": {}, "packs": True}),
    "fsdp2-x1-offload": (1, {"fsdp2": {}, "model": {"enable_activation_offload": True}}),
}
UNPACKED = ("gemma3",)  # tokens of a picture look both ways
CASES = [
    (family, trainer)
    for family in FAMILIES
    for trainer, (_, options) in TRAINERS.items()
    if family not in UNPACKED or "packs" not in options
]


class ModelDirs(dict[str, Path]):
    """Tiny models by family, each made when it is asked for."""

    def __init__(self, paths: pytest.TempPathFactory):
        super().__init__()
        self._paths = paths

    def __missing__(self, family: str) -> Path:
        self[family] = shown.save_tiny(self._paths.mktemp(family) / "model", family)
        return self[family]


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return ModelDirs(tmp_path_factory)


def wanted(model_dir: Path, **options: Any) -> Any:
    given = partial(shown.hf_inputs, model_dir)
    rates = [LEARNING_RATE] * 3
    want = train_reference(model_dir, shown.rows(model_dir), BentLoss(), rates, given=given, **options)
    return replace(want, parameters=[shown.as_stored(each, model_dir) for each in want.parameters])


def tolerance_of(family: str) -> float:
    """Of weights. Biases of keys change no attention: in Gemma-3's tower they are parameters of their own, whose
    gradients are rounding errors alone, and AdamW makes up to 3 % of a step of these."""
    return 6e-5 if family == "gemma3" else PARAMETER_TOLERANCE


@pytest.mark.gate("qwen2_5_vl-zero3-x2", "qwen3_vl-fsdp2-x2-packed", "qwen2_vl-fsdp2-x1")
@pytest.mark.parametrize(("family", "trainer"), CASES, ids=["-".join(case) for case in CASES])
def test_three_updates_with_pictures_equal_torch_adamw(
    family: str, trainer: str, rank_pool: Pools, model_dirs: dict[str, Path]
) -> None:
    """Log-probs, gradients of the first update (of the tower, too), weights and norm of three. Two micro batches on
    each rank; of two ranks one has no picture, so that what ranks do together goes on without one."""
    world_size, options = TRAINERS[trainer]
    model = {"disable_gradient_checkpointing": False} | options.get("model", {})
    run = Run(model_dirs[family], shows=True, split=(1, 1), **{**options, "model": model})
    got = rank_pool(world_size).run(runs.train, run)[0]
    want = wanted(model_dirs[family])
    assert any(name.startswith(SEES) for name in got.gradients)
    assert_same_training(got, want, tolerance_of(family))


@pytest.mark.slow
@pytest.mark.parametrize("family", UNPACKED)
def test_packs_of_a_family_that_looks_both_ways_are_refused(
    family: str, rank_pool: Pools, model_dirs: dict[str, Path]
) -> None:
    run = Run(model_dirs[family], shows=True, fsdp2={}, packs=True)
    with pytest.raises(
        RankError, match="does not work with this model: rows show pictures, whose tokens attend to each"
    ):
        rank_pool(1).run(runs.train, run)


@pytest.mark.gate("qwen2_5_vl-fsdp2-x2-packed")
@cases("family, trainer")
def test_supervised_updates_on_pictures_from_files_equal_torch_adamw(
    family: str, trainer: str, rank_pool: Pools, model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    """Rows as `load_conversations` makes them of a file, from the headers of its pictures: ranks decode these. The
    reference decodes them by itself as well, and its own processor leaves their size alone."""
    world_size, options = TRAINERS[trainer]
    model_dir, path = model_dirs[family], shown.write_conversations(tmp_path, model_dirs[family])
    run = Run(model_dir, shows=True, conversations=path, loss=SupervisedLoss(), **options)
    got = rank_pool(world_size).run(runs.train, run)[0]
    given = partial(shown.hf_inputs, model_dir)
    rows = shown.conversations(model_dir, path)
    assert sum(len(row.media[0]) for row in rows if row.media) == 6
    want = train_reference(model_dir, rows, SupervisedLoss(), [LEARNING_RATE] * 3, given=given)
    assert_same_training(got, want, tolerance_of(family))


@pytest.mark.gate("fsdp2-x2")
@pytest.mark.parametrize("trainer", ["zero3-x2", "fsdp2-x2"])
def test_a_frozen_tower_stays_as_it_is(trainer: str, rank_pool: Pools, model_dirs: dict[str, Path]) -> None:
    """Its features are as they were, and the language model learns as with torch."""
    world_size, options = TRAINERS[trainer]
    run = Run(model_dirs["qwen2_5_vl"], shows=True, model={"freeze_module_prefix": "vision_model"}, **options)
    got = rank_pool(world_size).run(runs.train, run)[0]
    blocks = ("model.visual.blocks.", "model.visual.patch_embed.")
    assert not any(name.startswith(blocks) for name in got.gradients)
    assert_same_training(got, wanted(model_dirs["qwen2_5_vl"], frozen=blocks))


@pytest.mark.gate("fsdp2-x2-qwen2_5_vl")
@pytest.mark.parametrize("family", ["qwen2_5_vl", "glm4v", "qwen3_5", "gemma3", "internvl"])
@pytest.mark.parametrize("trainer", ["zero3-x2", "fsdp2-x2"])
def test_runs_without_pictures_never_call_the_tower(
    trainer: str, family: str, rank_pool: Pools, model_dirs: dict[str, Path]
) -> None:
    """Nor do they change it, under weight decay as well."""
    world_size, options = TRAINERS[trainer]
    run = Run(model_dirs[family], training={"weight_decay": 0.1}, **options)
    got = rank_pool(world_size).run(runs.train, run)[0]
    assert not any(name.startswith(SEES) for name in got.gradients)
    first = load_policy(ModelArgs(model_name_or_path=str(model_dirs[family]), dtype="fp32")).pretrained
    tower = {name: p.detach().numpy() for name, p in first.named_parameters() if name.startswith(SEES)}
    assert tower and all(np.array_equal(got.parameters[2][name], weight) for name, weight in tower.items())


@pytest.mark.slow
def test_divided_experts_see_the_same(rank_pool: Pools, model_dirs: dict[str, Path]) -> None:
    run = Run(model_dirs["qwen3_5_moe"], shows=True, split=(1, 1), fsdp2={"ep_size": 2})
    assert_same_training(rank_pool(2).run(runs.train, run)[0], wanted(model_dirs["qwen3_5_moe"]))


# What happens where one of the rules is broken: each mutation has to show in the log-probs, or a test above proves
# nothing.


def scores_of(model_dir: Path, rows: list[MicroBatch]) -> torch.Tensor:
    """Log-probs of the rows together, padded, in this process."""
    model = load_policy(ModelArgs(model_name_or_path=str(model_dir), dtype="fp32", disable_gradient_checkpointing=True))
    batch = join(rows)
    assert model.vision is not None and batch.media is not None
    seen = PictureInputs.of(batch.media, batch.input_ids.shape[1], model.vision, torch.device("cpu"))
    layout = inputs_layout(batch, seen)
    with torch.no_grad():
        return model.module(batch.input_ids, batch.response_mask, layout=layout)[0]


def inputs_layout(batch: MicroBatch, seen: PictureInputs) -> Any:
    from roll.models.sequences.layout import Padded

    return Padded(batch.input_ids, batch.lengths, seen)


@pytest.fixture
def pictured(model_dirs: dict[str, Path]) -> Iterator[tuple[Path, list[MicroBatch]]]:
    yield model_dirs["qwen2_5_vl"], [row for row in shown.rows(model_dirs["qwen2_5_vl"]) if row.media and row.media[0]]


def test_another_picture_gives_other_log_probs(
    pictured: tuple[Path, list[MicroBatch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir, rows = pictured
    before = scores_of(model_dir, rows)
    plain = inputs.patches
    monkeypatch.setattr(inputs, "patches", lambda picture, model: -plain(picture, model))
    assert float((scores_of(model_dir, rows) - before).abs().max()) > 0.1


def test_positions_in_one_dimension_would_give_other_log_probs(
    pictured: tuple[Path, list[MicroBatch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir, rows = pictured
    before = scores_of(model_dir, rows)
    monkeypatch.setattr(inputs, "positions", lambda length, media, model: np.stack([np.arange(length)] * 3))
    assert float((scores_of(model_dir, rows) - before).abs().max()) > 1e-2


@pytest.mark.gate("fsdp2-x2")
@pytest.mark.parametrize("trainer", ["zero3-x2", "fsdp2-x2"])
def test_adapters_are_of_the_language_model_alone(
    trainer: str, rank_pool: Pools, model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    """The tower of Qwen2.5-VL has layers gate_proj and up_proj as well."""
    model_dir, names = model_dirs["qwen2_5_vl"], ["q_proj", "gate_proj"]
    whole = AutoModelForImageTextToText.from_pretrained(model_dir, dtype=torch.float32)
    layers = [n for n, _ in whole.named_modules() if "language_model" in n and n.endswith(tuple(names))]
    adapter = an_adapter(whole, tmp_path / "adapter", target_modules=layers)
    world_size, options = TRAINERS[trainer]
    model = LORA | {"lora_target": names, "adapter_name_or_path": str(adapter)}
    got = rank_pool(world_size).run(runs.train, Run(model_dir, shows=True, model=model, **options))[0]
    assert_same_training(got, wanted(model_dir, adapter=adapter))


def saved(run: Run, directory: Path) -> dict[str, np.ndarray]:
    """The weights after an update, which are written as a model as well."""
    with runs.trainer(run) as strategy:
        runs.one_update(strategy, run)
        strategy.save_hf_model(directory)
        return runs.exported(strategy)


@pytest.mark.gate("qwen2_5_vl-fsdp2-x2")
@pytest.mark.parametrize(
    ("family", "trainer"), [(family, trainer) for family, trainer in CASES if trainer in ("zero3-x2", "fsdp2-x2")]
)
def test_a_saved_model_is_loaded_by_transformers(
    family: str, trainer: str, rank_pool: Pools, model_dirs: dict[str, Path], tmp_path: Path
) -> None:
    """With the names that its family's files have, and the files of its processor."""
    world_size, options = TRAINERS[trainer]
    weights = rank_pool(world_size).run(saved, Run(model_dirs[family], shows=True, **options), tmp_path)[0]
    model = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32)
    parameters = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    found = shown.as_stored(parameters, model_dirs[family])
    assert weights.keys() == found.keys()
    for name, parameter in found.items():
        assert np.array_equal(parameter, weights[name]), name
    stored = set(load_file(tmp_path / "model.safetensors"))
    assert stored == set(load_file(model_dirs[family] / "model.safetensors"))
    processor = AutoProcessor.from_pretrained(tmp_path).image_processor
    if shown.vision(tmp_path).has_grid:
        assert processor.patch_size == shown.vision(tmp_path).patch_size
    else:
        assert processor.size["height"] == shown.vision(tmp_path).sizes.factor


@pytest.mark.gate("qwen2_5_vl")
@pytest.mark.parametrize("family", FAMILIES)
def test_hf_infer_samples_with_the_log_probs_of_transformers(family: str, model_dirs: dict[str, Path]) -> None:
    """Rows with one, two and no pictures in one batch, two answers each; keys and values computed anew amid them, as
    after an update."""
    model_dir = model_dirs[family]
    loaded = load_policy(
        ModelArgs(model_name_or_path=str(model_dir), dtype="fp32", disable_gradient_checkpointing=True)
    )
    sampler = BatchSampler(loaded.pretrained.eval(), [1], None, 512, 64, vision=loaded.vision)
    rows = [row for at, row in enumerate(shown.rows(model_dir)) if at in (0, 4, 5)]
    for number, row in enumerate(rows):
        ids, (media,) = row.input_ids[0].numpy().astype(np.int32), row.media or ((),)
        sampling = SamplingParams(max_new_tokens=10, seed=3)
        sampler.submit(GenerationRequest(str(number), ids, sampling, num_samples=2, media=media))
    answers = []
    for step in range(30):
        answers += sampler.step() if sampler.has_work else []
        if step == 4:
            sampler.recompute_cache()
    assert len(answers) == 6
    whole = AutoModelForImageTextToText.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
    for answer in answers:
        row, said = rows[int(answer.request_id)], answer.generation
        stray = np.isin(said.token_ids, shown.vision(model_dir).placeholders)
        assert not stray[:-1].any(), "a placeholder ends an answer"
        ids = torch.cat([row.input_ids, torch.from_numpy(said.token_ids[~stray].astype(np.int64))[None]], 1)
        longer = replace(
            row,
            **{
                name: torch.nn.functional.pad(getattr(row, name), (0, ids.shape[1] - row.input_ids.shape[1]))
                for name in ("response_mask", "rollout_log_probs", "advantages", "returns")
            },
            input_ids=ids,
            lengths=torch.tensor([ids.shape[1]]),
        )
        with torch.no_grad():
            logits = whole(input_ids=ids, **shown.hf_inputs(model_dir, longer)).logits[0, :-1].log_softmax(-1)
        wanted = logits.gather(1, ids[0, 1:, None])[row.input_ids.shape[1] - 1 :, 0].numpy()
        assert np.abs(wanted - said.log_probs[: len(wanted)]).max() < 1e-5
