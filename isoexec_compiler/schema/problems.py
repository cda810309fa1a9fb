"""What can be wrong with the shape of a contract, code by code."""

from isoexec_compiler.codes import Code

WRONG_TYPE = Code(
    id="C101",
    title="wrong type",
    manual="""
A value has another type than its key asks for.

    targets: sm90

`targets` is a list, even of one: `[sm90]`. Versions and dates are strings and stand in quotes: `version: "0.26.0"`.
YAML 1.2 has no `yes`, `no`, base-60 numbers or `1_000`; those are strings.
""",
)
MISSING_KEY = Code(
    id="C102",
    title="missing key",
    manual="""
A mapping lacks a key that it must have. Nothing that can move a bit has a default, so every key is written.

    model: {family: qwen3, config: {}, layers: {pattern: [attention], repeat: 2}}     # no dtype

Write the key. `isoexec init` writes a complete contract.
""",
)
UNKNOWN_KEY = Code(
    id="C103",
    title="unknown key",
    manual="""
A mapping holds a key that it does not have. A key that is ignored would look as if it had an effect.

    model: {famly: qwen3}

Correct or delete the key; the help names the nearest one there is.
""",
)
UNKNOWN_WORD = Code(
    id="C104",
    title="unknown word",
    manual="""
A value is not one of the few words its key takes.

    targets: [sm_90]

The help names the nearest word, or the note lists all.
""",
)
MALFORMED = Code(
    id="C105",
    title="malformed text",
    manual="""
A string is not of the form its key takes: an identifier (`[a-z][a-z0-9_]*`), an exact version in quotes, or a date.

    contract: ../qwen3

Names become file names and Python modules, which is why no other characters are taken.
""",
)
OUT_OF_RANGE = Code(
    id="C106",
    title="out of range",
    manual="""
A number is too small or too large, or a list or mapping has too few or too many items, or one twice.

    targets: []

The message states the bound.
""",
)
LANGUAGE_VERSION = Code(
    id="C107",
    title="unknown language version",
    manual="""
`isoexec:` states the version of the contract language. This compiler reads version 1.

    isoexec: 2

Install the release of isoexec that reads it. An older contract is not reinterpreted under newer rules.
""",
)
