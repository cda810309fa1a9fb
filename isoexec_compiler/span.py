"""Places in source text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Span:
    """A range of characters in a file.

    Lines and columns count Unicode code points from 1; the end is exclusive, so an empty range has equal start and end.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
