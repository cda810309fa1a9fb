# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, the recurrence inside chunks on Hopper (Gluon): the bits of `_chunk_recurrent_kernel`.

One program takes one head of one chunk, one warp 32 value columns of it. With 128 keys a thread holds 32 of them by
four columns of the state, so that a key or query read from shared memory serves four chains of multiply-adds, and three
programs share a multiprocessor. Keys and queries lie in shared memory in fp32; what the four threads of a column read
together is contiguous there. Tokens run from one row at which Z is scaled to the next: most chunks have none.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

CHUNK = gl.constexpr(64)
PLACES = gl.constexpr(4)
SPAN = gl.constexpr(16)  # keys that all places share, four each
LIFT = gl.constexpr(32.0)


@gluon.jit
def _locate(cu_seqlens, sequences, slot, LOOKUP: gl.constexpr):
    """Sequence, first row and row count of a chunk, as in `gdn_prepare_triton`."""
    i = gl.arange(0, LOOKUP, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    first = gl.load(cu_seqlens + i, mask=i < sequences, other=0) // CHUNK + i
    sequence = gl.sum(((first <= slot) & (i < sequences)).to(gl.int32), 0) - 1
    begin = gl.load(cu_seqlens + sequence)
    end = gl.load(cu_seqlens + sequence + 1)
    start = begin + (slot - begin // CHUNK - sequence) * CHUNK
    return sequence, start, gl.minimum(end - start, CHUNK)


@gluon.jit
def _widened(x, rows, stride, K: gl.constexpr):
    """64 rows of K elements from x on, in fp32 in shared memory, by row and places; zero from `rows` on."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // K, K // 8], [gl.num_warps(), 1], [1, 0])
    r = gl.arange(0, CHUNK, gl.SliceLayout(1, layout))[:, None]
    cells = r * stride + gl.arange(0, K, gl.SliceLayout(0, layout))[None, :]
    tile = gl.load(x + cells, mask=r < rows, other=0.0).to(gl.float32)
    shared = gl.allocate_shared_memory(gl.float32, [CHUNK, K], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]), tile)
    by_place: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    return shared._reinterpret(gl.float32, [CHUNK * K // SPAN, 2, 2, 4], by_place)


@gluon.jit
def _factors(scalars, rows, scale):
    """For every row exp2(B - B_before); in shared memory exp2(G - B), beta exp2(B - G), exp2(G - B) * scale and it."""
    r = gl.arange(0, CHUNK, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    G = gl.load(scalars + r, mask=r < rows, other=0.0)
    former = gl.load(scalars + r - 1, mask=(r > 0) & (r < rows), other=0.0)
    base = (G * (1.0 / LIFT)).to(gl.int32).to(gl.float32) * LIFT
    lift = gl.exp2(base - (former * (1.0 / LIFT)).to(gl.int32).to(gl.float32) * LIFT)
    e = gl.exp2(G - base)
    b = gl.load(scalars + CHUNK + r, mask=r < rows, other=0.0) * gl.exp2(base - G)
    four = gl.reshape(gl.join(gl.join(e, e * scale), gl.join(b, lift)), [CHUNK, 4])
    shared = gl.allocate_shared_memory(gl.float32, [CHUNK, 4], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]), four)
    return lift, shared._reinterpret(gl.float32, [CHUNK, 1, 1, 4], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))


@gluon.jit
def _four(x, layout: gl.constexpr):
    """[..., 4] as its four slices."""
    even, odd = gl.split(gl.reshape(x, x.shape[:-1] + [2, 2]))  # noqa: RUF005
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return (
        gl.convert_layout(first, layout, assert_trivial=True),
        gl.convert_layout(second, layout, assert_trivial=True),
        gl.convert_layout(third, layout, assert_trivial=True),
        gl.convert_layout(fourth, layout, assert_trivial=True),
    )


@gluon.jit
def _scalar(x):
    return gl.max(gl.max(x, 1), 0)


@gluon.jit
def _row(tile, t, like, vectors: gl.constexpr):
    """Row t as K / 4 tensors that look like the state's, in the order of each place's keys."""
    x = ()
    N: gl.constexpr = tile.shape[0] // CHUNK
    for i in gl.static_range(N):
        four = _four(tile.index(t * N + i).load(gl.SliceLayout(2, vectors)), gl.SliceLayout(2, like.type.layout))
        for j in gl.static_range(4):
            x = x + (gl.broadcast(four[j][:, :, None], like)[0],)  # noqa: RUF005
    return x


@gluon.jit(do_not_specialize=["sequences", "keep"])
def _hopper_chunk_recurrent_kernel(
    q, k, v, scalars, out, cu_seqlens, sequences, starts, running, decay, slots, scale, keep,
    H: gl.constexpr, HV: gl.constexpr, K: gl.constexpr, V: gl.constexpr, LOOKUP: gl.constexpr,
):  # fmt: skip
    """As `_chunk_recurrent_kernel`, all value columns of one head of one chunk; keep: whether caches are written."""
    columns: gl.constexpr = gl.BlockedLayout([1, 1, 4], [2, 2, 8], [1, 1, gl.num_warps()], [2, 1, 0])
    vectors: gl.constexpr = gl.BlockedLayout([1, 1, 4, 4], [2, 2, 8, 1], [1, 1, gl.num_warps(), 1], [3, 2, 1, 0])
    head = gl.program_id(0)
    place = gl.program_id(1)
    sequence, start, rows = _locate(cu_seqlens, sequences, place, LOOKUP)
    if rows > 0:
        begin = start.to(gl.int64)
        shared = (begin * H + head // (HV // H)) * K
        unit = place.to(gl.int64) * HV + head
        keys = _widened(k + shared, rows, H * K, K)
        queries = _widened(q + shared, rows, H * K, K)
        lifts, factors = _factors(scalars + unit * (3 * CHUNK), rows, scale)
        gl.thread_barrier()  # left to the compiler, it would stand in the loop
        value = gl.arange(0, V, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, vectors))))
        a = gl.arange(0, 2, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, vectors))))
        b = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, vectors))))
        j = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, vectors))))
        inner = value[None, None, :, None] * K + j[None, None, None, :]
        inner = inner + 8 * a[:, None, None, None] + 4 * b[None, :, None, None]
        s = ()
        for i in gl.static_range(0, K, SPAN):
            s = s + _four(gl.load(starts + unit * (V * K) + inner + i).to(gl.float32), columns)
        cells = (begin * HV + head) * V + gl.arange(0, V, gl.SliceLayout(0, gl.SliceLayout(1, columns)))
        v_next = gl.load(v + cells)
        r = gl.arange(0, CHUNK, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
        total = gl.zeros([2, 2, V], gl.float32, columns)
        e_scale = 0.0
        after = -1
        for _ in range(1 + gl.sum((lifts != 1.0).to(gl.int32), 0)):
            end = gl.min(gl.where((lifts != 1.0) & (r > after), r, rows), 0)
            for t in range(gl.maximum(after, 0), end):
                v_t = v_next.to(gl.float32)
                v_next = gl.load(v + cells + gl.minimum(t + 1, rows - 1) * (HV * V))
                four = _four(factors.index(t).load(gl.SliceLayout(2, vectors)), gl.SliceLayout(2, columns))
                k_t = _row(keys, t, s[0], vectors)
                product = s[0] * k_t[0]
                for i in gl.static_range(1, K // PLACES):
                    product = gl.fma(s[i], k_t[i], product)
                # The output of the row before: its sum runs under this row's first product.
                o = gl.sum(gl.sum(total, 1), 0) * e_scale
                gl.store(out + cells + (t - 1) * (HV * V), o.to(out.dtype.element_ty), mask=t > 0)
                u = (v_t - gl.sum(gl.sum(product, 1), 0) * _scalar(four[0])) * _scalar(four[1])
                u = gl.broadcast(u[None, None, :], s[0])[0]
                # The keys are read again: held, they would take the registers of a third program.
                again = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [t], gl.int32, is_pure=True, pack=1)
                k_t = _row(keys, again, s[0], vectors)
                q_t = _row(queries, t, s[0], vectors)
                e_scale = _scalar(four[2])
                moved = ()
                for i in gl.static_range(K // PLACES):
                    moved = moved + (gl.fma(u, k_t[i], s[i]),)  # noqa: RUF005
                    total = gl.fma(moved[i], q_t[i], total) if i > 0 else moved[i] * q_t[i]
                s = moved
            lift = gl.where(end < rows, gl.max(gl.where(r == end, lifts, 0.0), 0), 1.0)
            lifted = ()
            for i in gl.static_range(K // PLACES):
                lifted = lifted + (s[i] * lift,)  # noqa: RUF005
            s = lifted
            after = end
        o = gl.sum(gl.sum(total, 1), 0) * e_scale
        gl.store(out + cells + (rows - 1) * (HV * V), o.to(out.dtype.element_ty))
        if (keep > 0) & (rows < CHUNK):
            slot = gl.load(slots + sequence)
            if slot > 0:
                kept = slot.to(gl.int64) * HV + head
                G = gl.load(scalars + unit * (3 * CHUNK) + r, mask=r < rows)
                gl.store(decay + kept * CHUNK + r, G, mask=r < rows)
                # Element by element: vectors would tie the registers of the loop to one another.
                first = _four(inner, columns)[0]
                for i in gl.static_range(K // PLACES):
                    gl.store(running + kept * (V * K) + first + i // 4 * SPAN + i % 4, s[i])


def hopper_chunk_recurrent(arguments: tuple[object, ...], starts: torch.Tensor, keep: bool, **sizes: int) -> None:
    """The launch of `gdn_cpr_triton.chunk_recurrent`, of the arguments of `_chunk_recurrent_kernel`."""
    _hopper_chunk_recurrent_kernel[(sizes["HV"], starts.shape[0])](
        *arguments, int(keep), **sizes, num_warps=sizes["V"] // 32, maxnreg=168, enable_fp_fusion=False
    )
