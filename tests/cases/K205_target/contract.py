from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("targets: [sm90, cpu]", "targets: [sm90]"),
    ("      sm90: {rows: 16, num_warps: 4}\n", "      sm90: {rows: 16, num_warps: 4}\n      cpu: {}\n"),
)
