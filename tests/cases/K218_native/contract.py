from tests.edits import edit, line, recommended

NAME = "qwen3_5_tiny"
CHUNK = recommended(NAME, "gdn_core", "gdn_native_chunk", ("engine_prefill", "trainer_fwd", "trainer_score"))
STEP = recommended(NAME, "gdn_core", "gdn_native_step", ("engine_decode",))
TOLERANCE = "{tolerance: [engine_decode, trainer_score], max_abs_logprob: 0.0}"
CASES = "[engine_prefill, engine_decode, trainer_fwd, trainer_score]"

DATA = edit(NAME, (line(NAME, "gdn_core"), CHUNK + STEP), (TOLERANCE, f"{{equal_bits: gdn_core, cases: {CASES}}}"))
