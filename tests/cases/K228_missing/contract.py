from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("  - {state: kv_cache, invalidated_by: [weight_sync], resume: exact}\n", ""),
)
