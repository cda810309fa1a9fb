from tests.edits import edit, line

QKV = line("tiny_dense", "qkv")

DATA = edit(
    "tiny_dense",
    (QKV, QKV.replace("{max_rows: 16,", "{max_rows: 16, block_k: 128,", 1)),
)
