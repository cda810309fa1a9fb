from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("{kv_block: 64, split: 1024}", "{kv_blok: 64, kv_block: 64, split: 1024}"),
)
