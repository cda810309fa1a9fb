from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("region: act\n    cases: all\n", "region: act\n    cases: [engine_prefill, engine_decode, trainer_fwd]\n"),
)
