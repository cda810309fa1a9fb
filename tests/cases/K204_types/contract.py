from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("leaf_dtype: fp32", "leaf_dtype: fp16"),
    ("rms_norm_eps: 1e-06", 'rms_norm_eps: "1e-06"'),
    ("tie_word_embeddings: false", "tie_word_embeddings: no"),
)
