from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("act: {op: silu_gate, width: 128}", "act: {op: residual_add, width: 128}"),
    ("use: silu_gate_rows", "use: residual_add_rows"),
)
