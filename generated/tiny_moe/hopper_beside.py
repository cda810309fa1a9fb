# SPDX-License-Identifier: Apache-2.0
"""Tree product for few rows on Hopper: all leaves of a tile side by side, one warp each.

The tensor memory accelerator fills a ring with the same step of every leaf. Its first turn of weights is asked for
before the kernel before has ended: weights must be at rest, as the kernel before that left them.
"""

from collections.abc import Mapping

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .hopper_tiles import BLOCK_K, SHARED_BYTES, next_slot

ROWS = gl.constexpr(16)


@gluon.jit
def _tree(nodes, layout: gl.constexpr):
    """The balanced tree of adjacent nodes: shared memory [1, 2, 4 or 8, ...] -> registers."""
    leaves: gl.constexpr = nodes.shape[0]
    for leaf in gl.static_range(leaves):
        node = nodes.index(leaf).load(layout)
        if leaf % 2 == 1:
            node = pair + node  # noqa: F821
        if leaf % 4 == 3:
            node = four + node  # noqa: F821
        if leaf % 8 == 7:
            node = eight + node  # noqa: F821
        if leaf % 2 == 0:
            pair = node  # noqa: F841
        elif leaf % 4 == 1:
            four = node  # noqa: F841
        else:
            eight = node  # noqa: F841
    return node


@gluon.jit(do_not_specialize=["rows"])
def _hopper_beside_kernel(x, weight, out, rows, N: gl.constexpr, STEPS: gl.constexpr, LEAF_DTYPE: gl.constexpr,
                          STAGES: gl.constexpr):  # fmt: skip
    """x, weight: descriptors of boxes [leaves, rows or outputs, BLOCK_K]. out: the address of [rows, N]."""
    LEAVES: gl.constexpr = x.block_shape[0]
    BLOCK_N: gl.constexpr = weight.block_shape[1]
    size: gl.constexpr = LEAVES * (ROWS + BLOCK_N) * BLOCK_K * 2
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [LEAVES, 1, 1], [1, 16, 8])
    flat: gl.constexpr = gl.BlockedLayout([1, 2], [32 * 2 // BLOCK_N, BLOCK_N // 2], [LEAVES, 1], [1, 0])
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, LEAVES, ROWS, BLOCK_K], x.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, LEAVES, BLOCK_N, BLOCK_K], weight.layout)
    met = gl.allocate_shared_memory(
        gl.float32, [LEAVES, ROWS, BLOCK_N], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    )  # fmt: skip
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    column = gl.program_id(0) * BLOCK_N
    row = gl.program_id(1) * ROWS
    gdc_launch_dependents()
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.expect(full.index(slot), size)
        tma.async_copy_global_to_shared(weight, [0, column, slot * BLOCK_K], full.index(slot), w_tiles.index(slot))
    gdc_wait()
    for slot in gl.static_range(STAGES):
        tma.async_copy_global_to_shared(x, [0, row, slot * BLOCK_K], full.index(slot), x_tiles.index(slot))
    leaves = gl.zeros([LEAVES, ROWS, BLOCK_N], gl.float32, mma)
    slot = 0
    phase = 0
    for step in range(STEPS):
        ready = full.index(slot)
        mbarrier.wait(ready, phase)
        left = x_tiles.index(slot).load(gl.DotOperandLayout(0, mma, 2))
        right = w_tiles.index(slot).permute((0, 2, 1)).load(gl.DotOperandLayout(1, mma, 2))
        leaves = mma_v2(left, right, leaves)
        gl.thread_barrier()
        k = (step + STAGES) * BLOCK_K
        more = step + STAGES < STEPS
        mbarrier.expect(ready, size, pred=more)
        tma.async_copy_global_to_shared(weight, [0, column, k], ready, w_tiles.index(slot), pred=more)
        tma.async_copy_global_to_shared(x, [0, row, k], ready, x_tiles.index(slot), pred=more)
        slot, phase = next_slot(slot, phase, STAGES)
    met.store(leaves.to(LEAF_DTYPE).to(gl.float32))
    nodes = met._reinterpret(gl.float32, [LEAVES, ROWS, BLOCK_N], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    root = _tree(nodes, flat)
    m = row + gl.arange(0, ROWS, gl.SliceLayout(1, flat))[:, None]
    n = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, flat))[None, :]
    gl.store(out + m.to(gl.int64) * N + n, root.to(out.dtype.element_ty), (m < rows) & (n < N))


def _leaves(tensor: torch.Tensor, leaves: int, rows: int) -> TensorDescriptor:
    """Boxes [leaves, rows, BLOCK_K] of a bfloat16 matrix [any, K], K cut into leaves."""
    leaf = tensor.shape[1] // leaves
    shape, strides = [leaves, tensor.shape[0], leaf], [leaf, tensor.shape[1], 1]
    return TensorDescriptor(
        tensor, shape, strides, [leaves, rows, BLOCK_K.value], gl.NVMMASharedLayout(128, 16, 3)
    )  # fmt: skip


def hopper_beside(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    leaves: int,
    launch: Mapping,
    leaf_dtype: gl.dtype = gl.float32,
) -> None:
    """out [rows, N] = the tree over `leaves` (1, 2, 4, 8) of x [rows, K] times weight [N, K] transposed, rounded once.

    x and weight are contiguous bfloat16, aligned to 16 bytes, K a multiple of 64 * leaves. out is contiguous, bfloat16
    or float32. `launch` moves no bit: tiles are 16 rows by `block_n` outputs (at most 32), at most `num_stages` of them
    in flight, of fewer leaves than 8 as many more. With `overlap` no kernel that triggers its dependents early may have
    written the weight since the last one that does not.
    """
    rows, columns = out.shape
    block_n, steps = min(launch["block_n"], 32), x.shape[1] // leaves // BLOCK_K.value
    stage, held = leaves * (ROWS.value + block_n) * BLOCK_K.value * 2, leaves * ROWS.value * block_n * 4
    stages = min(launch["num_stages"] * 8 // leaves, (SHARED_BYTES - held) // stage, steps)
    _hopper_beside_kernel[(triton.cdiv(columns, block_n), triton.cdiv(rows, ROWS.value))](
        _leaves(x, leaves, ROWS.value), _leaves(weight, leaves, block_n), out, rows, columns, steps, leaf_dtype, stages,
        num_warps=leaves, enable_fp_fusion=False, launch_pdl=launch["overlap"],
    )  # fmt: skip
