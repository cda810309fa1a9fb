from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("  rope: {op", "  q_nrom: {op: rms_norm, width: 32, eps: 1e-06, gamma: plain}\n  rope: {op"),
    ("q_norm, k_norm, mlp_norm", "q_norm, k_norm, q_nrom, mlp_norm"),
)
