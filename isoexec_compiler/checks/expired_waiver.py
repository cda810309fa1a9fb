"""A waiver whose time is over."""

from collections.abc import Iterator
from datetime import UTC, date, datetime

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic

EXPIRED_WAIVER = Code(
    id="K229",
    title="waiver expired",
    manual="""
A waiver excuses one obligation of the runtime guard until a date. This date is past, or is no day of the calendar.

    waivers:
      - {obligation: weight_sync, reason: "the trainer's fingerprint lands next week", expires: "2026-01-31"}

Meet the obligation and delete the waiver, or argue for a later date. The day itself still counts, in UTC.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """No waiver's date is past."""
    today = datetime.now(UTC).date()
    for waiver in contract.waivers:
        try:
            expires = date.fromisoformat(waiver.expires)
        except ValueError:
            yield EXPIRED_WAIVER.at(waiver.at("expires"), f"{waiver.expires} is no day of the calendar")
            continue
        if expires < today:
            yield EXPIRED_WAIVER.at(
                waiver.at("expires"), f"the waiver of {waiver.obligation} ended on {expires}", note=waiver.reason
            )
