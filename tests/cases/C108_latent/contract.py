from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("    head_dim: 32\n", "    head_dim: 32\n    kv_lora_rank: 512\n"),
)
