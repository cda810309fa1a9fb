# SPDX-License-Identifier: Apache-2.0
"""How a split of the keys ends in `hopper_attention`: merged into the result of its rows, or left to be combined."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def finite(top):
    return gl.where(top == float("-inf"), 0.0, top)


@gluon.jit
def _row_sum(total, row_layout: gl.constexpr):
    even, odd = gl.split(gl.reshape(total, (64, 4, 2)))
    # Four columns in four lanes: shuffles by two, then by one, which is the order of halves.
    return gl.convert_layout(gl.sum(even + odd, 1), row_layout, assert_trivial=True)


@gluon.jit
def scaled(acc, factor):
    layout: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    return acc * gl.convert_layout(factor, layout, assert_trivial=True)[:, None]


@gluon.jit
def _merge(merged, split_top, split_total, split_acc):
    top, total, acc = merged
    new_top = gl.maximum(top, split_top)
    base = finite(new_top)
    old = gl.exp2(top - base)
    new = gl.exp2(split_top - base)
    return new_top, total * old + split_total * new, scaled(acc, old) + scaled(split_acc, new)


@gluon.jit
def finish_split(merged, parts, split, s_top, s_total, s_acc, place, HEADS: gl.constexpr, GROUP: gl.constexpr,
                 SHARED: gl.constexpr):  # fmt: skip
    """Merges a split into the rows' result or, where splits are shared out, leaves it for the combine kernel."""
    row_layout: gl.constexpr = s_top.type.layout
    s_sum = _row_sum(s_total, row_layout)
    if SHARED:
        tops, totals, accs = parts
        start, tokens, queries, tile, kv_head = place
        row = gl.arange(0, 64, row_layout)
        token = tile + row // GROUP
        valid = (row < 64 // GROUP * GROUP) & (token < queries)
        part = (split.to(gl.int64) * tokens + start + token) * HEADS + kv_head * GROUP + row % GROUP
        gl.store(tops + part, s_top, mask=valid)
        gl.store(totals + part, s_sum, mask=valid)
        acc_layout: gl.constexpr = s_acc.type.layout
        acc_rows: gl.constexpr = gl.SliceLayout(1, acc_layout)
        column = gl.arange(0, s_acc.shape[1], gl.SliceLayout(0, acc_layout))
        part = gl.convert_layout(part, acc_rows, assert_trivial=True)[:, None] * s_acc.shape[1] + column[None, :]
        gl.store(accs + part, s_acc, mask=gl.convert_layout(valid, acc_rows, assert_trivial=True)[:, None])
        return merged
    return _merge(merged, s_top, s_sum, s_acc)
