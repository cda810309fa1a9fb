from tests.edits import edit

DATA = edit(
    "tiny_dense",
    (
        "{topology: sp, sizes: [off, on], across: [trainer]}",
        "{topology: sp, sizes: [off, on], across: [engine, trainer]}",
    ),
)
