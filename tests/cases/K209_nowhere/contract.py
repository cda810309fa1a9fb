from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("region: [attn_residual, mlp_residual]", "region: attn_residual"),
)
