from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("repeat: 2", "repeat: 0"),
)
