from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("- {max_rows: 64, schedule: tiles", "- {max_rows: 16, schedule: tiles"),
    ("- {max_rows: 16, block_m", "- {block_m"),
)
