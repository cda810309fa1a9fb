from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("family: qwen3", "family: qwen"),
    ("use: vllm", "use: sglang"),
    ("act: {op: silu_gate", "act: {op: gelu"),
    ("region: rope", "region: rotary"),
    ("across: [engine, trainer]", "across: [engine, actor]"),
    ("state: kv_cache", "state: gdn_state"),
)
