from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("rms_norm_eps: 1e-06", "rms_norm_eps: 1e-05"),
)
