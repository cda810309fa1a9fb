from tests.edits import edit, line

ACT = line("tiny_dense", "act")

DATA = edit(
    "tiny_dense",
    (ACT, ACT.replace("cases: all", "cases: [trainer_score]") + ACT),
)
