from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("act: {op: silu_gate, width: 128}", "act: {op: silu_gate, width: 256}"),
)
