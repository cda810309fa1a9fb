from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("leaf_dtype: fp32, ", ""),
)
