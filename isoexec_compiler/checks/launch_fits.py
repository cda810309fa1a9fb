"""Launch parameters with which a kernel cannot run a region, or one rank's share of it."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import selected
from isoexec_compiler.fields import sound
from isoexec_compiler.layouts import sizes

LAUNCH_FITS = Code(
    id="K231",
    title="launch does not fit the region",
    manual="""
A bucket's launch parameters cannot run this region on one rank, or the share that a claimed size leaves a rank,
although each of them alone is allowed. What the copy engine brings and stores has multiples of 16 bytes, and the
schedules that it feeds take 64 elements of a sum at a time.

    regions:
      gdn_in: {op: matmul, n: 1552, k: 64, split: columns, out: model}
    composition:
      - {region: gdn_in, cases: all, use: matmul_sequential, ..., launch: {sm90: {schedule: persistent, ...}}}
    claims:
      - {topology: tp, sizes: [1, 2, 4]}

One of four ranks computes 388 outputs of two bytes there, and its rows do not end at a multiple of 16 bytes. Take
another schedule, here `tiles`, or do not claim that size.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """The implementation has no objection to a bucket at any claimed size; the smallest that it refuses is named."""
    claimed = sizes(contract, "tp")
    for one in selected(contract):
        region, constants = one.region.attributes, one.selection.constants
        for target, buckets in one.selection.launch.items():
            parameters = one.use.launch.get(target, {})
            for i, bucket in enumerate(buckets):
                if not sound(bucket.parameters, parameters):
                    continue
                for ranks in (1, *sorted(claimed)):
                    reasons = list(one.use.launch_problems(region, constants, bucket.parameters, ranks))
                    for reason in reasons:
                        yield LAUNCH_FITS.at(
                            one.selection.at("launch", target, i),
                            f"{one.use.name} for {one.region.name} on {ranks} rank{'s' * (ranks > 1)}: {reason}",
                            labels=(Label(span=one.region.span, text="the region"),),
                        )
                    if reasons:
                        break
