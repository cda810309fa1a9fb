from tests.edits import edit, line

ROPE = line("tiny_dense", "rope")

DATA = edit(
    "tiny_dense",
    ("targets: [sm90, cpu]", "targets: [sm90]"),
    (ROPE, ROPE + "      cpu: {}\n"),
)
