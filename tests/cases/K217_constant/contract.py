from tests.edits import edit

DATA = edit(
    "tiny_dense",
    (
        "region: attn\n    cases: all\n",
        "region: attn\n"
        "    cases: [engine_prefill, engine_decode]\n"
        "    use: attention_blocks\n"
        "    constants: {kv_block: 64, split: 512}\n"
        "    launch:\n"
        "      sm90: {block_m: 16, num_warps: 4, num_stages: 3, programs: 528}\n"
        "  - region: attn\n"
        "    cases: [trainer_fwd, trainer_score]\n",
    ),
    ("  - {tolerance: [engine_decode, trainer_score], max_abs_logprob: 0.0}\n", ""),
)
