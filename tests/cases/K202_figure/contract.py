from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("    head_dim: 32\n", ""),
)
