from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("{max_rows: 16, schedule: tiles, block_m: 16", "{max_rows: 16, schedule: tiles, block_k: 128, block_m: 16"),
)
