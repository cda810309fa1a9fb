from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("split: 1024", "split: 1008"),
)
