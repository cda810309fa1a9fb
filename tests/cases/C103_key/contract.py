from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("  family: qwen3", "  famly: qwen3\n  family: qwen3"),
)
