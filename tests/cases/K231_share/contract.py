from tests.edits import edit

DATA = edit(
    "qwen3_5_tiny",
    (
        "{schedule: tiles, overlap: true, block_m: 128, block_n: 256, num_warps: 8, num_stages: 3, group: 8}",
        "{schedule: persistent, overlap: true, block_m: 128, block_n: 256, num_warps: 8, num_stages: 3, group: 8}",
    ),
)
