from tests.edits import edit

DATA = edit(
    "tiny_dense",
    (
        "  - {tolerance: [engine_decode, trainer_score], max_abs_logprob: 0.0}\n",
        "  - {tolerance: [engine_decode, trainer_score], max_abs_logprob: 0.0}\n"
        "\n"
        "waivers:\n"
        '  - {obligation: weight_sync, reason: "the fingerprint lands next week", expires: "2026-01-31"}\n',
    ),
)
