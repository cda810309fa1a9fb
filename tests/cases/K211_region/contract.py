from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("  k_norm: {op: rms_norm, width: 32, eps: 1e-06, gamma: plain}\n", ""),
    ("q_norm, k_norm, mlp_norm", "q_norm, mlp_norm"),
)
