from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("invalidated_by: [weight_sync]", "invalidated_by: [sleep]"),
)
