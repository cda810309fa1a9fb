"""A captured CUDA graph replays the bits of the eager call."""

from __future__ import annotations

from isoexec_compiler import control
from isoexec_compiler.law import Finding, Law, on_gpu
from isoexec_compiler.subject import Subject, outputs_differing

SIZES = (1, 17, 65, 257, 1024)
REPLAYS = 3


def _examine(subject: Subject) -> Finding:
    import torch

    finding, known = Finding(), subject.rows()
    for rows in (size for size in SIZES if size in known):
        draw = subject.draw(rows)
        for name, call in subject.calls(rows, draw).items():
            eager = subject.run(name, call)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = subject.run(name, call)
            for _ in range(REPLAYS):
                for out in captured:
                    out.fill_(float("nan") if out.is_floating_point() else -1)
                graph.replay()
                finding.differing += outputs_differing(captured, eager)
                finding.compared += sum(out.numel() for out in eager)
            if rows > 1:
                control.wrong_order(subject, finding, name, call, eager)
        if rows > 1:
            finding.fired += draw.fired
    finding.domain = {"rows": [size for size in SIZES if size in known], "replays": REPLAYS}
    return finding


LAW = Law(
    name="graph",
    doc="A call captured in a CUDA graph and replayed into outputs full of NaN gives the bits of the eager call.",
    backs=("kernel", "tolerance"),
    applies=on_gpu,
    examine=_examine,
)
