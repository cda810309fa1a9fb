from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("region: act\n    cases: all\n", "region: act\n    cases: all\n    fp8: true\n    lora: 16\n"),
)
