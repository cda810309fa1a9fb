from tests.edits import edit

DATA = edit(
    "tiny_dense",
    (
        'engine: {use: vllm, version: "0.26.0", cases: [engine_prefill, engine_decode]}',
        'engine: {use: vllm, version: "0.26.0", cases: [engine_prefill, engine_decode, trainer_score]}',
    ),
)
