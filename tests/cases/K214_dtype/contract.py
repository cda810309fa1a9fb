from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("dtype: bf16", "dtype: fp32"),
)
