from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ('"0.26.0"', '"0.5.0"'),
)
