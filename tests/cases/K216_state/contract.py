from tests.edits import edit, line

NAME = "qwen3_5_tiny"
CORE = line(NAME, "gdn_core")

DATA = edit(NAME, (CORE, CORE.replace("state: fp32", "state: bf16")))
