from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("targets: [sm90, cpu]", "targets: [cpu, cpu]"),
)
