from tests.edits import edit, line

ACT = line("tiny_dense", "act")

DATA = edit(
    "tiny_dense",
    (ACT, ACT.split("    launch:")[0]),
)
