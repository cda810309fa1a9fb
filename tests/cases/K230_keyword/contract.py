from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("contract: tiny_dense", "contract: import"),
)
