from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("kv_block: 64, split: 1024", "kv_block: 48, split: 1000"),
)
