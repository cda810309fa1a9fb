from tests.edits import edit, line

ROPE = line("tiny_dense", "rope")

DATA = edit(
    "tiny_dense",
    (ROPE, ROPE.split("    launch:")[0]),
)
