from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("use: silu_gate_rows", "use: silu_gates_rows"),
)
