"""The arithmetic against figures that were worked out by hand for the shipped recipes.

GPU figures are of one rank on an 80 GB card. What is certain (weights, gradients, optimizer) has to agree to the digit
that is given; a peak is an estimate on both sides and has to agree within 15 %, contexts of the processes included.
"""

import shutil
from pathlib import Path

import pytest

from roll.configs.memory.memory_points import MemoryPlan, MemoryPoint, memory_plan
from roll.configs.memory.parts import GB, total
from roll.run.spec import PIPELINES
from roll.run.start.load import load
from roll.run.start.memory_report import gather_facts

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
MODELS = Path(__file__).parent / "models"
SEVEN, THIRTY = "qwen2.5-7b", "qwen3-30b-a3b"
ZERO3 = ("qwen2.5-7B-rlvr", "rlvr_zero3", SEVEN)
FSDP2 = ("qwen2.5-7B-rlvr", "rlvr_fsdp2", SEVEN)
MEGATRON_7B = ("qwen2.5-7B-rlvr", "rlvr_megatron", SEVEN)
FSDP2_30B = ("qwen3-30B-A3B-rlvr", "rlvr_fsdp2", THIRTY)
MEGATRON_30B = ("qwen3-30B-A3B-rlvr", "rlvr_megatron", THIRTY)


class Shipped:
    """The memory of shipped recipes with the models they are for."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self._folder, self._monkeypatch = folder, monkeypatch

    def __call__(self, recipe: tuple[str, str, str], *overrides: str, gpu_gb: float | None = 80) -> MemoryPlan:
        directory, name, model = recipe
        (self._folder / model).mkdir(exist_ok=True)
        shutil.copy(MODELS / f"{model}.json", self._folder / model / "config.json")
        self._monkeypatch.setenv("MODEL", str(self._folder / model))
        loaded = load(PIPELINES["rlvr"], EXAMPLES / directory, name, overrides)
        facts, missing = gather_facts(loaded.config, loaded.plan, gpu_gb and gpu_gb * GB)
        assert missing == []
        return memory_plan(loaded.plan.layout, facts)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shipped:
    return Shipped(tmp_path, monkeypatch)


def states(plan: MemoryPlan, role: str = "actor_train") -> dict[str, float]:
    return {part.name: part.num_bytes / GB for parts in plan.roles[role].states.values() for part in parts}


def moment(plan: MemoryPlan, name: str, where: int = 0) -> MemoryPoint:
    moments = list({**plan.by_gpu, **plan.by_node}.values())[where]
    return next(each for each in moments if each.name == name)


@pytest.mark.parametrize(
    ("recipe", "weights", "gradients", "optimizer", "digit", "peak"),
    [
        (ZERO3, 1.9, 3.8, 11.4, 0.05, 34),  # by hand: 32 to 36
        (MEGATRON_7B, 3.8, 7.6, 11.4, 0.05, 31),
        (MEGATRON_30B, 8, 16, 23, 0.5, 57),
    ],
    ids=lambda value: "/".join(value[:2]) if isinstance(value, tuple) else None,
)
def test_a_trainers_rank_holds_what_was_worked_out_by_hand(
    shipped: Shipped,
    recipe: tuple[str, str, str],
    weights: float,
    gradients: float,
    optimizer: float,
    digit: float,
    peak: float,
) -> None:
    plan = shipped(recipe)
    held = states(plan)
    assert held.pop("gradient bucket", 2.0) == 2.0  # of ZeRO-3: 500 million elements in fp32
    assert held == pytest.approx({"weights": weights, "gradients": gradients, "optimizer": optimizer}, abs=digit)
    training = moment(plan, "training of actor_train")
    assert training.total / GB == pytest.approx(peak, rel=0.15)
    assert training.least / GB == pytest.approx(sum(states(plan).values()))


def test_parts_of_a_training_pass_are_those_worked_out_by_hand(shipped: Shipped) -> None:
    """ZeRO-3 at 7B, packs of 16k tokens: checkpoints 3.3 and one layer 3 to 4, live parameters 2, a chunk 1.07, the
    head's gradient 1.1.
    AdamW steps by a fused kernel, without temporaries."""
    parts = {part.name: part.num_bytes / GB for part in moment(shipped(ZERO3), "training of actor_train").parts}
    assert 3.3 + 3 < parts["activations"] < 3.3 + 4
    assert parts["gathered weights"] == 2.0
    assert parts["logits"] == pytest.approx(1.074, rel=0.01)
    assert parts["gradient of the head"] == pytest.approx(1.1, abs=0.05)
    for recipe in (MEGATRON_7B, MEGATRON_30B):
        names = {part.name for part in moment(shipped(recipe), "training of actor_train").parts}
        assert "activations" in names and "temporaries of AdamW" not in names


def test_divided_experts_are_gathered_in_eighths(shipped: Shipped) -> None:
    """30B: of a layer in bf16 1.208 GB of experts and .038 GB of the rest, embedding and head 1.245 GB; two layers are
    there at a time. What a rank holds for good is the same."""
    whole = shipped(FSDP2_30B)
    divided = shipped(FSDP2_30B, "actor_train.strategy_args.strategy_config.ep_size=8")
    assert states(divided) == pytest.approx(states(whole))
    for plan, experts in ((whole, 1.208), (divided, 1.208 / 8)):
        parts = {part.name: part.num_bytes / GB for part in moment(plan, "training of actor_train").parts}
        assert parts["gathered weights"] == pytest.approx(1.245 + 2 * (experts + 0.038), abs=0.01)
        assert ("rows on their way to experts" in parts) == (plan is divided)


def test_host_memory_of_sleeping_roles_is_what_was_worked_out_by_hand(shipped: Shipped) -> None:
    """7B with ZeRO-3 on 8 GPUs: of each rank 17.1 GB and a bucket, reference 15, four engines of vLLM 61, which pinned
    blocks of powers of two bring to at most 122; about 100 GB of processes. ZeRO-2 pins about 30 GB a rank."""
    plan = shipped(ZERO3)
    copies = {role: [part.num_bytes / GB for part in memory.copies] for role, memory in plan.roles.items()}
    assert copies["actor_train"][0] == pytest.approx(17.1 + 2, abs=0.1)
    assert 8 * copies["reference"][0] == pytest.approx(15, abs=0.5)
    assert 4 * copies["actor_infer"][0] == pytest.approx(61, abs=0.5)
    assert 4 * sum(copies["actor_infer"]) <= 122
    parts = {part.name: part.num_bytes / GB for part in moment(plan, "all roles running", where=1).parts}
    assert parts["32 processes"] == pytest.approx(100, rel=0.1)

    zero2 = shipped(ZERO3, "actor_train.strategy_args.strategy_config.zero_optimization.stage=2")
    assert total(zero2.roles["actor_train"].copies) / GB == pytest.approx(30, abs=0.5)


@pytest.mark.parametrize(("recipe", "a_node"), [(ZERO3, 122), (MEGATRON_30B, 490)])
def test_a_whole_model_on_every_rank_takes_that_much_of_a_node_while_it_starts(
    shipped: Shipped, recipe: tuple[str, str, str], a_node: float
) -> None:
    changed = shipped(recipe, "reference.strategy_args={strategy_name: hf_infer}")
    assert 8 * total(changed.roles["reference"].loading) / GB == pytest.approx(a_node, rel=0.01)


def test_the_share_of_an_engine_is_weights_and_cache_and_says_how_many_tokens_fit(shipped: Shipped) -> None:
    """0.6 of 80 GB are 48; tensor parallel 2 leaves 7.6 GB of weights and 28,672 bytes per token on a GPU."""
    parts = {part.name: part.num_bytes / GB for part in moment(shipped(ZERO3), "rollout of actor_infer").parts}
    ((name, cache),) = [(name, size) for name, size in parts.items() if name.startswith("key-value cache")]
    assert parts["weights"] == pytest.approx(7.6, abs=0.05)
    assert name == f"key-value cache for {cache * GB / 28_672 / 1e6:.2g} M tokens"
    inside = ("weights", name, "activations", "logits", "CUDA graphs")
    assert sum(parts[part] for part in inside) == pytest.approx(48)

    (unknown,) = shipped(ZERO3, gpu_gb=None).roles["actor_infer"].states["kv_cache"]
    assert (unknown.name, unknown.num_bytes) == ("key-value cache up to 0.6 of the GPU", 0)


def test_what_deepspeed_keeps_on_the_host_is_on_no_gpu(shipped: Shipped) -> None:
    """Of ZeRO-3 with both offloads the bucket is left; the 17.1 GB of a rank are in host memory, asleep or not."""
    at = "actor_train.strategy_args.strategy_config.zero_optimization"
    plan = shipped(ZERO3, f"+{at}.offload_param.device=cpu", f"+{at}.offload_optimizer.device=cpu")
    assert states(plan) == {"gradient bucket": 2.0}
    host = {part.name: part.num_bytes / GB for part in plan.roles["actor_train"].host}
    assert sum(size for name, size in host.items() if "rounding" not in name) == pytest.approx(17.1, abs=0.1)

    on_disk = shipped(ZERO3, f"+{at}.offload_optimizer={{device: nvme, nvme_path: /disk}}").roles["actor_train"]
    assert on_disk.states["optimizer"] == on_disk.host == ()


def test_roles_apart_keep_their_states_and_frozen_weights_have_none(shipped: Shipped) -> None:
    """The embedding of 7B is 545 million of its 7.6 billion parameters."""
    frozen = states(shipped(ZERO3, "+actor_train.model_args.freeze_module_prefix=model.embed_tokens"))
    trained = 7_615_616_512 - 152_064 * 3584
    assert frozen["weights"] == pytest.approx(2 * 7_615_616_512 / 8 / GB)
    assert frozen["gradients"] == pytest.approx(4 * trained / 8 / GB)
    assert frozen["optimizer"] == pytest.approx(12 * trained / 8 / GB)
    plan = shipped(("qwen2.5-7B-rlvr", "rlvr_megatron_disjoint", SEVEN))
    publish = moment(plan, "weight publish of actor_infer", where=1)
    assert any(part.name.startswith("key-value cache") and part.num_bytes > 50 * GB for part in publish.parts)
    host = moment(plan, "all roles running", where=3)
    assert not any("copies" in part.name for part in host.parts)


def test_a_pack_takes_the_memory_of_its_tokens(shipped: Shipped) -> None:
    """Activations grow with tokens: those of a pack, not of so many longest rows."""

    def activations(*overrides: str) -> float:
        plan = shipped(ZERO3, *overrides)
        (part,) = [p for p in plan.roles["actor_train"].passes["training"] if p.name == "activations"]
        return part.num_bytes

    at = "actor_train"
    both = [f"++{at}.use_dynamic_batching_in_{where}=true" for where in ("train", "infer")]
    packs = [*both, f"++{at}.use_sequence_packing=true", f"++{at}.max_tokens_per_microbatch_in_infer=10000"]
    small = activations(*packs, f"++{at}.max_tokens_per_microbatch_in_train=10000")
    large = activations(*packs, f"++{at}.max_tokens_per_microbatch_in_train=20000")
    assert large == pytest.approx(2 * small)


@pytest.mark.parametrize("recipe", [ZERO3, FSDP2], ids=["deepspeed", "fsdp2"])
def test_activations_that_wait_on_the_host_are_there_and_not_on_the_gpu(
    shipped: Shipped, recipe: tuple[str, str, str]
) -> None:
    """28 layers' inputs, of which two are on the GPU."""
    plain = shipped(recipe).roles["actor_train"]
    moved = shipped(recipe, "actor_train.model_args.enable_activation_offload=true").roles["actor_train"]
    on_gpu = [next(p for p in plan.passes["training"] if p.name == "activations") for plan in (plain, moved)]
    on_host = next(part for part in moved.host if part.name == "activations (enable_activation_offload)")
    assert on_host.num_bytes * 26 / 28 == pytest.approx(on_gpu[0].num_bytes - on_gpu[1].num_bytes)
    assert on_host.num_bytes > 0 and total(moved.host) - total(plain.host) == on_host.num_bytes
