from tests.edits import edit, line

ATTENTION = line("tiny_dense", "attn")
DECODE = ATTENTION.replace("cases: all", "cases: [engine_decode]").replace("split: 1024", "split: 512")
OTHERS = ATTENTION.replace("cases: all", "cases: [engine_prefill, trainer_fwd, trainer_score]")
TOLERATED = "".join(
    f"  - {{tolerance: [engine_decode, {case}], max_abs_logprob: 0.01}}\n" for case in ("engine_prefill", "trainer_fwd")
)
ZERO = "  - {tolerance: [engine_decode, trainer_score], max_abs_logprob: 0.0}\n"

DATA = edit(
    "tiny_dense",
    (ATTENTION, DECODE + OTHERS),
    (ZERO, TOLERATED + ZERO),
)
