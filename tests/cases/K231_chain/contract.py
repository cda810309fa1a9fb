from tests.edits import edit

DATA = edit(
    "tiny_dense",
    (
        "{schedule: tiles, block_m: 64, block_n: 64, num_warps: 4, num_stages: 5, share: 2, group: 8, overlap: true}",
        "{schedule: halves, block_m: 64, block_n: 64, num_warps: 4, num_stages: 5, share: 2, group: 8, overlap: true}",
    ),
)
