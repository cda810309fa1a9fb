from tests.edits import edit, line

ATTENTION = line("tiny_dense", "attn")
ENGINE = ATTENTION.replace("cases: all", "cases: [engine_prefill, engine_decode]").replace("split: 1024", "split: 512")
TRAINER = ATTENTION.replace("cases: all", "cases: [trainer_fwd, trainer_score]")

DATA = edit(
    "tiny_dense",
    (ATTENTION, ENGINE + TRAINER),
    ("  - {tolerance: [engine_decode, trainer_score], max_abs_logprob: 0.0}\n", ""),
)
