from tests.edits import edit

DATA = edit(
    "tiny_dense",
    (
        "  - {topology: sp, sizes: [off, on], across: [trainer]}\n",
        "  - {topology: sp, sizes: [off, on], across: [trainer]}\n"
        "  - {topology: tp, sizes: [1, 2], across: [engine]}\n",
    ),
)
