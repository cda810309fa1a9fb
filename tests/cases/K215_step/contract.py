from isoexec_compiler.registry import CASES
from tests.edits import edit, line, recommended

NAME = "qwen3_5_tiny"
STEP = recommended(NAME, "gdn_core", "gdn_native_step", CASES)

DATA = edit(NAME, (line(NAME, "gdn_core"), STEP))
