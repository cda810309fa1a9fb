from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("leaves: 8, leaf_dtype: fp32", "leaves: 2, leaf_dtype: fp32"),
)
