from tests.edits import edit

DATA = edit(
    "tiny_dense",
    ("{topology: tp,", "{topolgy: tp,"),
)
