"""From bytes to text that looks the same to everybody: UTF-8, composed, every character visible."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice

from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.source import problems
from isoexec_compiler.span import Span

MAX_BYTES = 1 << 20
MAX_PROBLEMS = 100

_BOM = b"\xef\xbb\xbf"
_STAND_IN = "\N{REPLACEMENT CHARACTER}"
_CONTROL = re.compile("([\x00-\x08\x0b-\x1f\x7f-\x9f])\\1*")
_NAMES = {"\0": "NULL", "\t": "TAB", "\r": "CARRIAGE RETURN", "\x1b": "ESCAPE"}  # Unicode gives controls no name
_HIDDEN_CATEGORIES = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs")
# Characters that show nothing although Unicode does not count them as controls, formats or spaces.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef\ufdd0-\ufdef"
    + "".join(chr(plane + 0xFFFE) + chr(plane + 0xFFFF) for plane in range(0, 0x110000, 0x10000))
    + "]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Text with the offset at which each line starts. Only a line feed ends a line."""

    name: str
    text: str
    line_starts: tuple[int, ...]

    def span(self, start: int, end: int) -> Span:
        """The span of `text[start:end]`."""
        line, end_line = bisect_right(self.line_starts, start), bisect_right(self.line_starts, end)
        return Span(
            file=self.name,
            line=line,
            column=start - self.line_starts[line - 1] + 1,
            end_line=end_line,
            end_column=end - self.line_starts[end_line - 1] + 1,
        )


def as_text(name: str, text: str) -> Text:
    """`text` with its lines indexed."""
    lengths = (len(line) + 1 for line in text.split("\n")[:-1])
    return Text(name=name, text=text, line_starts=tuple(accumulate(lengths, initial=0)))


def decode(data: bytes, name: str) -> tuple[Text | None, tuple[Diagnostic, ...]]:
    """The text of a file and what is wrong with it; None when there is no text to go on with."""
    if len(data) > MAX_BYTES:
        message = f"the file has {len(data):,} bytes; a contract has at most {MAX_BYTES:,}"
        return None, (problems.TOO_LARGE.at(as_text(name, "").span(0, 0), message),)
    try:
        decoded = data.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        readable = as_text(name, _unix(error.object[: error.start].decode("utf-8")))
        end = len(readable.text)
        wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        hint = "save the file as UTF-8" + (", not UTF-16" if wide else "")
        message = f"byte 0x{error.object[error.start]:02X} is not UTF-8"
        return None, (problems.NOT_UTF8.at(readable.span(end, end), message, help=hint),)
    text = as_text(name, _unix(decoded))
    found = [*islice(_hidden(text), MAX_PROBLEMS), *islice(_decomposed(text), MAX_PROBLEMS)]
    if data.startswith(_BOM):
        found.append(problems.BYTE_ORDER_MARK.at(text.span(0, 0), "the file starts with a byte order mark"))
    return text, tuple(found)


def readable(data: bytes) -> str:
    """The text of a file as diagnostics count its lines and columns, whether or not it can be decoded."""
    return _unix(data.removeprefix(_BOM).decode("utf-8", errors="replace"))


def without_hidden(text: Text) -> Text:
    """The text with a visible stand-in for each hidden character, so that a parser can go on at the right places."""
    clean = _CONTROL.sub(lambda match: _STAND_IN * len(match[0]), text.text)
    hidden = {ord(c): _stand_in(c) for c in set(clean) if not c.isascii() and is_hidden(c)}
    return Text(name=text.name, text=clean.translate(hidden), line_starts=text.line_starts)


def is_hidden(character: str) -> bool:
    """Whether a character shows nothing, looks like a space or reorders its neighbours (not space or line feed)."""
    if character in "\n ":
        return False
    return unicodedata.category(character) in _HIDDEN_CATEGORIES or _BLANK.match(character) is not None


def is_composed(value: str) -> bool:
    """Whether `value` is in Unicode normal form C."""
    return unicodedata.is_normalized("NFC", value)


def character_name(character: str) -> str:
    """How a message names a character that it cannot show: `U+00A0 NO-BREAK SPACE`."""
    name = _NAMES.get(character) or unicodedata.name(character, "")
    return f"U+{ord(character):04X} {name}".rstrip()


def _stand_in(hidden: str) -> str:
    return " " if unicodedata.category(hidden) == "Zs" else _STAND_IN


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


def _hidden(text: Text) -> Iterator[Diagnostic]:
    for match in _CONTROL.finditer(text.text):
        message = f"control character {character_name(match[1])}"
        help = "end lines with LF or CR LF" if match[1] == "\r" else None
        yield problems.CONTROL_CHARACTER.at(text.span(*match.span()), message, help=help)
    hidden = "".join(sorted(c for c in set(text.text) if not c.isascii() and is_hidden(c) and not _CONTROL.match(c)))
    if hidden:
        for match in re.finditer(f"([{hidden}])\\1*", text.text):
            message = f"hidden character {character_name(match[1])}"
            yield problems.HIDDEN_CHARACTER.at(text.span(*match.span()), message)


def _decomposed(text: Text) -> Iterator[Diagnostic]:
    if is_composed(text.text):
        return
    for start, line in zip(text.line_starts, text.text.split("\n"), strict=True):
        composed = unicodedata.normalize("NFC", line)
        if composed != line:
            pairs = enumerate(zip(line, composed, strict=False))
            at = start + next((i for i, (written, normal) in pairs if written != normal), len(composed))
            message = f"{character_name(text.text[at])} is not in normal form C here"
            yield problems.NOT_COMPOSED.at(text.span(at, at + 1), message)
