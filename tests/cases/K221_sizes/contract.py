from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("sizes: [1, 2, 4]", "sizes: [3, 4]"),
    ("sizes: [off, on]", "sizes: [1, 2]"),
)
