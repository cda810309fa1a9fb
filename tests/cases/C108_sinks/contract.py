from tests.edits import edit

DATA = edit(
    "tiny_dense",
    (
        "scale: 0.1767766952966369",
        "scale: 0.1767766952966369, sinks: true, softcap: 30.0, sliding_window: 128, alibi: true",
    ),
)
