from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("isoexec: 1", "isoexec: 2"),
)
