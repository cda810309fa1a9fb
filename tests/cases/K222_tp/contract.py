from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("  - {topology: tp, sizes: [1, 2, 4], across: [engine, trainer]}\n", ""),
)
