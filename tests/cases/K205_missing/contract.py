from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("    use: rotary_table\n    launch:\n      sm90: {rows: 16, num_warps: 4}\n", "    use: rotary_table\n"),
)
