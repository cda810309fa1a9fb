from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("sizes: [1, 2, 4]", "sizes: [1, 2, 4, 8]"),
)
