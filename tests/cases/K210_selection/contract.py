from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("cases: [engine_prefill, engine_decode]}", "cases: [engine_decode]}"),
    (
        "region: act\n    cases: all\n",
        "region: act\n    cases: [engine_prefill, engine_decode, trainer_fwd, trainer_score]\n",
    ),
)
