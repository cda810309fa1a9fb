from tests.edits import edit, line

ACT = line("tiny_dense", "act")
LAUNCH = ACT.split("sm90: ")[1].strip("{}\n")

DATA = edit(
    "tiny_dense",
    (
        ACT,
        ACT.replace(
            f"{{{LAUNCH}}}", f"[{{max_rows: 64, {LAUNCH}}}, {{max_rows: 32, {LAUNCH}}}, {{{LAUNCH}}}, {{{LAUNCH}}}]"
        ),
    ),
)
