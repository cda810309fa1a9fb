from tests.edits import edit

DATA = edit(
    "tiny_dense",
    (
        "{block_m: 128, num_warps: 8, num_stages: 3, programs: 0}",
        "{max_rows: 4096, block_m: 128, num_warps: 8, num_stages: 3, programs: 0}",
    ),
)
