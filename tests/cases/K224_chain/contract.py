from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("region: [qkv, gate_up, head]", "region: [qkv, gate_up, head, down]"),
    ("region: [attn_out, down]", "region: attn_out"),
)
