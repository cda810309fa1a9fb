from tests.edits import edit

DATA = edit(
    "tiny_dense",
    (
        'trainer: {use: megatron, version: "0.19.2", cases: [trainer_fwd, trainer_score]}',
        'trainer: {use: megatron, version: "0.19.2", cases: [trainer_fwd, trainer_score], tp_comm_overlap: true}',
    ),
)
