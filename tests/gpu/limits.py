"""The bounds of the checks' figures, each with its reason. Where a figure was seen on CPUs, that is said."""

from tests.gpu.check import Limit

ABOVE_0 = 1e-6
_LEFT = "what stays on the device is not there for the next role; buffers and counters are small"
_HOOKS = "hooks that were lost on the trip would leave it 0"
_STEPS = "AdamW turns a gradient near 0, a sum in another order, into a share of its step of 1e-3 (CPUs: 2 % of one)"
_BF16 = "bf16 against fp32 (CPUs: 0.003 mean, 0.02 at most)"
_COPIES = (
    "338 tensors: 25 us of calls for each, 8 ms of 60, mostly behind the copies before (H200: 0.96). Faster than one "
    "copy: something else was on the device in its time"
)

SHARING_TRAINER = {
    "weight_difference": Limit(_STEPS, most=1e-4),
    "grad_norm_difference": Limit("relative, fp32", most=1e-3),
    "grad_norm_after_trip": Limit(_HOOKS, least=1e-3),
    "moved_after_trip": Limit(f"AdamW's steps are 1e-3; {_HOOKS}", least=5e-4),
    "trip_difference": Limit("a trip changes no number; backward passes on GPUs add in any order", most=1e-4),
    "trip_grad_norm_difference": Limit("relative; the same", most=1e-3),
    "left_on_device_fraction": Limit(_LEFT, most=0.1, cuda_only=True),
    "resume_difference": Limit("weights, moments and counts are restored exactly", most=1e-4),
}
"""Under the distributed optimizer no rank has whole gradients."""
TRAINER = {"gradient_difference": Limit("fp32 without TF32, sums of a few hundred terms", most=2e-5)} | SHARING_TRAINER
ADAPTED_EXPERTS = {
    "gradient_difference": TRAINER["gradient_difference"],
    "weight_difference": Limit(_STEPS, most=1e-4),
    "grad_norm_difference": Limit("relative, fp32", most=1e-3),
    "bf16_gradient_gap": Limit("bf16 against fp32, of all together (CPUs: 0.02)", most=0.1),
    "bf16_log_prob_gap_max": Limit(f"{_BF16}; adapters that are left out are off by more than 1", most=0.2),
}
REPLAYED = {
    "wrong_rows": Limit("experts are told and obeyed", most=0),
    "log_prob_gap_max": Limit("fp32, log-probs of about 6", most=1e-4),
    "gradient_difference": TRAINER["gradient_difference"],
    "given_others": Limit("else there would be nothing to obey", least=1),
}
SCORER = {
    "log_prob_gap_max": Limit("fp32, log-probs of about 6", most=1e-4),
    "trip_difference": Limit("the same kernels on the same weights", most=ABOVE_0),
    "left_on_device_fraction": Limit(_LEFT, most=0.1, cuda_only=True),
}
TRAINER_MEMORY = {
    "held_to_planned": Limit(
        "what a dry run calls certain (an H200: 1 to 1.01); a copy of ZeRO-3's is 0.1", 0.95, 1.08
    ),
    "left_on_device_fraction": Limit(_LEFT, most=0.05, cuda_only=True),
    "device_given_back_fraction": Limit("what torch lets go of: others can have it", least=0.85, cuda_only=True),
    "grad_norm_after_trip": Limit(_HOOKS, least=ABOVE_0),
    "moved_after_trip": Limit("two of AdamW's steps of 1e-3, in bf16; a lost weight moves by itself", 1e-5, 2e-2),
}
ENGINE_MEMORY = {
    "log_prob_gap_mean": Limit(_BF16, most=0.02),
    "log_prob_gap_max": Limit(_BF16, most=0.2),
    "log_prob_gap_after_sleep": Limit(f"the mean of the same; {_BF16}", most=0.02),
    "same_after_sleep_fraction": Limit("the weights come back as they were", least=1),
    "left_asleep_fraction": Limit("contexts, graphs, communicators: 2 GB of 40", most=0.15, cuda_only=True),
}
VLLM_MEMORY = ENGINE_MEMORY | {
    "to_bare": Limit(
        "of the tokens per second of the same AsyncLLM, with the same parameters. Far more: something else was on the "
        "device in its time",
        0.95,
        1.15,
        cuda_only=True,
    )
}
QUANTISED_ENGINE = {
    "gap_of_fp8": Limit("the same as before: bf16 alone would make it 0.004", least=0.008, cuda_only=True),
    "log_prob_gap_before": Limit("three bits of a mantissa, random weights", most=0.1),
    "log_prob_gap_after": Limit("the same, of the weights that were sent", most=0.1),
    "gap_to_moved": Limit("of means; weights of before would make it 1", most=0.4),
    "moved_mean": Limit("else old weights would not show in the gap", least=0.05),
}
VLLM_TYPES = {
    "log_prob_gap_before": Limit(f"{_BF16}, of the worst type", most=0.05),
    "log_prob_gap_after": Limit("the same, of the weights that were sent", most=0.05),
    "gap_to_moved": Limit("of means; weights of before would make it 1", most=0.3),
    "moved_mean": Limit("else old weights would not show in the gap", least=0.05),
}
RUN = {
    "log_prob_gap_mean": Limit(
        "bf16 kernels round differently (CPUs: 0.002 to 0.004); old weights: over 0.05", most=0.01
    ),
    "log_prob_gap_max": Limit("the same, for the worst of 2,048 tokens (CPUs: 0.02)", most=0.1),
    "moved": Limit("else old weights would not show in the gap", least=0.2),
    "grad_norm": Limit("the policy learns", least=ABOVE_0),
}
_BETWEEN_EXPERTS = "bf16 sends a token between two experts to the other one"
MIXTURE_RUN = RUN | {
    "log_prob_gap_mean": Limit(f"{_BETWEEN_EXPERTS} (CPUs: .005, vLLM .01); old weights: over 0.05", most=0.025),
    "log_prob_gap_max": Limit(f"{_BETWEEN_EXPERTS} (CPUs: 0.15, vLLM 0.37)", most=1),
}
EXACT_RUN = RUN | {"log_prob_gap_max": Limit("the same kernels in the same shapes, so the same bits", most=0)}
ENGINE_DEATH = {
    "seconds_to_three_more_steps": Limit("a new engine takes a minute or two; the group's own limit is 300", most=240),
    "restarts": Limit("the run has noticed", least=1),
    "log_prob_gap_max": Limit("the engine that took its place has the weights", most=0.1),
    "exit_status": Limit("it ended when it was told to (SIGTERM)", 143, 143),
}
_FREED = Limit("a look at the sender, and its own end; the group's limit is 300", most=20)
BROADCAST_DEATH = {"sender_s": _FREED, "receiver_s": _FREED}
PACKED_ROWS = {
    "output_gap": Limit(f"{_BF16}; rows that see each other are off by about 1", most=0.02),
    "gradient_gap": Limit(f"{_BF16}, relative to the largest", most=0.03),
    "flash_kernels": Limit("forward and backward", least=1, cuda_only=True),
}
_FP32 = "fp32, products of three TF32 ones or better; a single TF32 product would make it 5e-4"
TREE_ATTENTION = {
    "output_gap_bf16": Limit(f"{_BF16}, on up to 16 levels; tokens of a sibling are off by about 1", most=0.03),
    "gradient_gap_bf16": Limit(f"{_BF16}, relative to the largest", most=0.03),
    "output_gap_fp32": Limit(_FP32, most=5e-5),
    "gradient_gap_fp32": Limit(_FP32, most=5e-5),
    "flash_kernels": Limit("forward and backward", least=2, cuda_only=True),
    "attention_packed_to_tree": Limit(
        "one call like that of packs, over a quarter of the queries (an H200's kernels: 1.5)", least=1.1, cuda_only=True
    ),
}
TREE_UPDATES = {
    "grad_norm_to_packs_least": Limit("the same loss on the same tokens, in bf16", least=0.98),
    "grad_norm_to_packs_most": Limit("the same", most=1.02),
    "tokens_to_distinct": Limit("computed ones; those of a node of fewer than 32 may be computed twice", most=1.1),
    "auto_to_best": Limit(
        "time of auto by that of the quicker one of on and off: it wants trees to be 1.1 times cheaper",
        most=1.15,
        cuda_only=True,
    ),
    "time_packed_to_tree_512_64_18k": Limit("4.5 times fewer tokens, of 4 groups at a time", least=1, cuda_only=True),
    "time_packed_to_tree_512_64_73k": Limit("4.5 times fewer tokens", least=2, cuda_only=True),
    "time_packed_to_tree_episodes_73k": Limit("3.2 times fewer tokens", least=1.5, cuda_only=True),
}
FAMILIES = {
    "log_prob_gap_max": Limit(
        "fp32 without TF32 (CPUs: 7e-6, gemma4_text 6e-5); a number left out is off by .05", most=3e-4
    ),
    "gradient_gap": Limit("fp32, of the worst weight, relative (CPUs: 4e-5, gemma4_text 6e-4)", most=5e-3),
    "sampled_gap_max": Limit("fp32 without TF32 (CPUs: 2e-5)", most=3e-4),
    "bf16_gap_to_plain": Limit(
        "what transformers loses by bf16 on a CPU is 1; 1.9 where a token near a tie takes another expert", most=3
    ),
    "bf16_gradient_to_plain": Limit("the same, of the gradients (CPUs: 0.5 to 2.9)", most=6),
    "num_refused": Limit("by this version of transformers", most=2),
    "num_types": Limit("none is left out", least=16),
    "num_packed": Limit("all but two of these take packs", least=14),
    "num_sampled": Limit("hf_infer samples all of these", least=16),
}
OTHER_FAMILIES = FAMILIES | {
    "num_types": Limit("those of an older transformers (91)", least=80),
    "num_packed": Limit("three quarters take packs (69 of 91)", least=65),
    "num_sampled": Limit("hf_infer samples most of them (77 of 91)", least=70),
}
EXACT_PASSES = {
    "differing_tokens": Limit("log-probs of a token are the same bits in every pass", most=0),
    "num_types": Limit("none is left out", least=14),
    "lacking_tokens": Limit("each has a log-prob", most=0),
    "bf16_to_torch": Limit("time of a large product (an H200: 1.5)", most=3, cuda_only=True),
    "fp32_to_torch": Limit("the same (an H200: 3.4)", most=6, cuda_only=True),
}
LONG_ROW = {
    "math_kernels": Limit("that kernel keeps all scores: 2 GB a copy for 16k tokens", most=0),
    "flash_kernels": Limit("forward and backward", least=1),
    "log_prob_gap_mean": Limit(f"{_BF16}; a mask in the wrong corner is off by more", most=0.02),
    "log_prob_gap_max": Limit(_BF16, most=0.3),
    "grad_norm": Limit("an update went through", least=ABOVE_0),
    "peak_bytes_per_token": Limit("two layers; scores would be 1 MB a token", most=200_000, cuda_only=True),
}
_FASTEST = "operations of 3 passes over the peak in bf16, products kept and blocks compiled (H200: 0.42)"
_MORE_THAN_A_DEVICE_DOES = 0.8  # the largest matrices alone reach less
_PLAIN = "a pass that checkpointing repeats is not counted, and small passes are not joined (H200: 0.27, compiled 0.32)"
UPDATES = {
    "mfu": Limit(_PLAIN, 0.25, _MORE_THAN_A_DEVICE_DOES, cuda_only=True),
    "time_to_plain": Limit(
        "master weights are cast, the head's products computed once more (7 % of the 0.5B); plain keeps all logits. "
        "Half of its time: something else was on the device in that",
        0.5,
        1.3,
        cuda_only=True,
    ),
    "peak_to_planned": Limit("the plan of the update phase, in torch's own count", 0.9, 1.1, cuda_only=True),
    "grad_norm_to_plain": Limit("the same loss on the same tokens, in bf16 (an H200: 0.998)", 0.95, 1.05),
    "moved": Limit("seven of AdamW's steps of 1e-6: nothing is left out of an update", 3e-6, 1e-5),
}
COMPILED_UPDATES = UPDATES | {
    "mfu": Limit("fewer passes over memory (H200: 0.32)", 0.3, _MORE_THAN_A_DEVICE_DOES, cuda_only=True)
}
FASTEST_UPDATES = UPDATES | {
    "mfu": Limit(_FASTEST, 0.35, _MORE_THAN_A_DEVICE_DOES, cuda_only=True),
    "time_to_plain": Limit("fewer passes and less recomputation than plain (H200: 0.77)", 0.4, 0.95, cuda_only=True),
}
HEAD_TILES = {
    "log_prob_gap_max": Limit("logits are rounded to bf16: 2^-9 of a few units", most=0.05),
    "gradient_gap": Limit("relative; factors of the products are rounded to bf16, one rounding is 2^-9", most=0.02),
    "time_to_small_tiles": Limit("fewer launches, aligned products (H200: 0.23)", most=0.35, cuda_only=True),
    "time_compiled": Limit("of the time without: fewer passes over a tile (H200: 0.63)", most=0.75, cuda_only=True),
}
WEIGHT_COPIES = {
    "same_fraction": Limit("copies change nothing", least=1),
    "to_host_share": Limit(_COPIES, 0.85, 1.2, cuda_only=True),
    "to_device_share": Limit(_COPIES, 0.85, 1.2, cuda_only=True),
}
_REPEATS = Limit("a sample depends on its seed alone", least=1)
SGLANG_HASH = {
    "equal_fraction": Limit("a seed gives the same samples on every engine", least=1),
    "time_fraction": Limit("one kernel against about 20 passes over 311 MB", most=0.5, cuda_only=True),
    "repeated_fraction": _REPEATS,
    "top_p_repeated_fraction": _REPEATS,
    "likeliest_fraction": Limit("samples are drawn: no token has .001 of a row", most=0.5),
}
LEARNS = {
    "validation_gain": Limit("twice what the validation set's noise makes", least=0.05),
    "log_prob_gap_max": Limit("fp32 without TF32", most=1e-3),
}
LEARNS_WELL = LEARNS | {"validation_gain": Limit("of rewards up to 1, in 24 steps (0.88; an H200: 0.86)", least=0.5)}

# A trainer and a sampler that hand one device to each other.
_IN_TURNS = "each has the device for itself in its turn; buffers, counters and what torch rounds up are small"
_OLD_WEIGHTS = "of means; weights of before would make it 1 (CPUs: 0.00001 in fp32, 0.03 in bf16)"
_CONTROL = {
    "gap_to_moved": Limit(_OLD_WEIGHTS, most=0.2),
    "grad_norm": Limit("the policy learns", least=ABOVE_0),
    "trainer_left_fraction": Limit(_IN_TURNS, most=0.1, cuda_only=True),
    "sampler_left_fraction": Limit(_IN_TURNS, most=0.1, cuda_only=True),
}
HANDOVER = _CONTROL | {
    "log_prob_gap_max": Limit("fp32 without TF32 on both sides, by other kernels", most=1e-4),
    "moved": Limit("AdamW's steps are 1e-3; else old weights would not show in the gap", least=1e-2),
}
HANDOVER_LARGE = _CONTROL | {
    "gap_to_moved": Limit(f"{_OLD_WEIGHTS}; an H200: 0.08", most=0.12),
    "log_prob_gap_mean": Limit("bf16 on both sides (CPUs: 0.008)", most=0.03),
    "log_prob_gap_max": Limit("bf16 on both sides (CPUs: 0.06)", most=0.3),
    "moved": Limit("else old weights would not show in the gap (CPUs: 1.9; a rehearsal: 0.05)", least=0.02),
    "weight_sync_s_per_gb": Limit(
        "the aim is twice a copy, 2 ms; but each of 290 weights is gathered, packed and loaded by kernels of its own, "
        "some 0.1 s together (H200: 0.16)",
        most=0.25,
        cuda_only=True,
    ),
}
HANDOVER_OF_ADAPTERS = HANDOVER_LARGE | {
    "gap_to_moved": _CONTROL["gap_to_moved"],
    "peak_to_planned": Limit("the plan of the update phase, in torch's own count", 0.9, 1.1, cuda_only=True),
}
