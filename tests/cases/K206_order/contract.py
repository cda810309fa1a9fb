from tests.edits import edit, line

ROPE = line("tiny_dense", "rope")
LAUNCH = ROPE.split("sm90: ")[1].strip("{}\n")

DATA = edit(
    "tiny_dense",
    (
        ROPE,
        ROPE.replace(
            f"{{{LAUNCH}}}", f"[{{max_rows: 64, {LAUNCH}}}, {{max_rows: 32, {LAUNCH}}}, {{{LAUNCH}}}, {{{LAUNCH}}}]"
        ),
    ),
)
