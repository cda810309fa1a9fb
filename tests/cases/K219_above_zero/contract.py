from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("max_abs_logprob: 0.0", "max_abs_logprob: 1.0e-6"),
)
