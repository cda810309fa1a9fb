"""Launch parameters by number of rows: which bucket a call falls into."""

from collections.abc import Iterator
from itertools import pairwise

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.facts import lines

BUCKET_ORDER = Code(
    id="K206",
    title="launch buckets out of order",
    manual="""
A call takes the first bucket whose `max_rows` is not below its number of rows. So `max_rows` rises from bucket to
bucket, and the last has none, which makes it the bucket of every larger call.

    launch:
      sm90:
        - {max_rows: 64, block_m: 16}
        - {max_rows: 32, block_m: 128}

Sort the buckets and leave `max_rows` out of the last.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Bounds rise strictly and only the last bucket is open."""
    for selection in lines(contract):
        for target, buckets in selection.launch.items():
            bounds = [bucket.max_rows for bucket in buckets]
            if bounds[-1] is not None:
                place = selection.at("launch", target, len(bounds) - 1, "max_rows")
                yield BUCKET_ORDER.at(place, "the last bucket has a `max_rows`, so larger calls have no launch")
            for i, (bound, following) in enumerate(pairwise(bounds)):
                if bound is None:
                    yield BUCKET_ORDER.at(
                        selection.at("launch", target, i), "a bucket without `max_rows` hides those after it"
                    )
                elif following is not None and following <= bound:
                    yield BUCKET_ORDER.at(
                        selection.at("launch", target, i + 1, "max_rows"),
                        f"`max_rows` {following} does not come after {bound}",
                    )
