from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ('use: vllm, version: "0.26.0"', 'use: megatron, version: "0.19.2"'),
)
