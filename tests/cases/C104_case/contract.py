from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("cases: [trainer_fwd, trainer_score]", "cases: [trainer_fwd, trainer_scores]"),
)
