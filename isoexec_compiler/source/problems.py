"""What the reader refuses, code by code. People read a contract and programs hash it: both must see the same thing."""

from __future__ import annotations

from isoexec_compiler.codes import Code

TOO_LARGE = Code(
    id="S001",
    title="file too large",
    manual="""
A contract is at most 1 MiB. The largest published model needs about 20 KiB.

    isoexec compile weights.safetensors

Give the path of the contract. If a program writes your contract, let it write one selection per region, not one per
layer.
""",
)
NOT_UTF8 = Code(
    id="S002",
    title="not UTF-8",
    manual="""
A contract is UTF-8 text. Another encoding would give other characters, or none, on another machine.

    note: caf\\xe9          # the byte E9, Latin-1

Save the file as UTF-8. `iconv -f latin1 -t utf-8` converts it.
""",
)
BYTE_ORDER_MARK = Code(
    id="S003",
    title="byte order mark",
    manual="""
The file starts with a byte order mark. UTF-8 needs none, and some programs take it for a part of the first key.

    \\ufeffisoexec: 1

Save the file as UTF-8 without BOM.
""",
)
CONTROL_CHARACTER = Code(
    id="S004",
    title="control character",
    manual="""
The text holds a control character, such as NUL, escape, or a carriage return without a line feed. It is not seen in
an editor and may change what a terminal shows. Lines end in LF or CR LF.

    contract: tiny\\x00dense

Delete the character.
""",
)
HIDDEN_CHARACTER = Code(
    id="S005",
    title="hidden character",
    manual="""
The text holds a character that shows nothing, looks like a space, or reorders its neighbours: no-break space,
zero-width space, bidirectional control, private-use character, half of a surrogate pair. YAML does not take them for
spaces, so `a:<no-break space>1` is one string.

    width:\\u00a02048

Delete the character, or type an ordinary space.
""",
)
NOT_COMPOSED = Code(
    id="S006",
    title="not in normal form C",
    manual="""
The text holds a letter and an accent as two characters where Unicode has one. Both look the same and give different
digests.

    note: cafe\\u0301

Type the composed letter. `uconv -x nfc` converts a file.
""",
)
TAB = Code(
    id="S007",
    title="tab",
    manual="""
A YAML contract holds a tab. YAML forbids tabs where indentation counts, and its readers disagree about the other
places. A `.json` contract may be indented with tabs.

    model:
    \\tfamily: qwen3

Indent with spaces.
""",
)
SYNTAX = Code(
    id="S008",
    title="not valid YAML or JSON",
    manual="""
The text is not valid YAML or, in a file named `.json`, not valid JSON. Reading stops here, so later problems are not
reported yet.

    targets: [sm90, cpu

The place is where the parser noticed; the cause is often a little before: a bracket or quote left open, a missing
`:`, or a line indented by one space too many.
""",
)
EMPTY = Code(
    id="S009",
    title="empty document",
    manual="""
The file holds nothing, or only comments.

    # my contract

A contract starts with `isoexec: 1`. `isoexec init` writes one from a model's `config.json`.
""",
)
ROOT_NOT_MAPPING = Code(
    id="S010",
    title="document is not a mapping",
    manual="""
The outermost value of a contract is a mapping of sections.

    - region: attn_norm

Write `isoexec`, `contract`, `model` and the other sections as keys without indentation.
""",
)
SECOND_DOCUMENT = Code(
    id="S011",
    title="more than one document",
    manual="""
One file is one contract. After a line `---` a second document starts.

    isoexec: 1
    ---
    isoexec: 1

Move the second document to a file of its own.
""",
)
ANCHOR = Code(
    id="S012",
    title="anchor or alias",
    manual="""
YAML anchors (`&name`) and aliases (`*name`) are not part of the language: a line must say by itself what it pins, and
nested aliases can make a few lines stand for gigabytes.

    attn_norm: &norm {op: rms_norm, width: 2048}
    mlp_norm: *norm

Write the value out.
""",
)
TAG = Code(
    id="S013",
    title="tag",
    manual="""
YAML tags (`!!str`, `!name`) are not part of the language: the type of a value follows from how it is written.

    version: !!str 1.10

Remove the tag. Quotes make a string: `"1.10"`.
""",
)
MERGE_KEY = Code(
    id="S014",
    title="merge key",
    manual="""
The YAML 1.1 merge key `<<` is not part of the language: readers disagree about which value wins.

    mlp_norm: {<<: {op: rms_norm}, width: 2048}

Write the merged keys out.
""",
)
DUPLICATE_KEY = Code(
    id="S015",
    title="duplicate key",
    manual="""
A mapping holds a key twice. Most readers keep the last value without a word.

    attn_norm: {op: rms_norm, width: 2048, width: 4096}

Keep one of them.
""",
)
KEY_NOT_STRING = Code(
    id="S016",
    title="key is not a string",
    manual="""
Keys are names. A number, `true`, `null`, nothing, a list or a mapping is not.

    sm90: {1: block}

Write a name that starts with a letter.
""",
)
KEY_NOT_IDENTIFIER = Code(
    id="S017",
    title="key is not an identifier",
    manual="""
Keys become names in generated Python. They start with a lower-case letter and go on with lower-case letters, digits
and `_`.

    Attn-Norm: {op: rms_norm}

Write `attn_norm`.
""",
)
NOT_FINITE = Code(
    id="S018",
    title="number is not a finite float64",
    manual="""
Infinity and NaN pin nothing, and a number beyond the range of float64 would be read as infinity or zero.

    eps: .inf
    eps: 1e-400

Write a finite number. To switch a limit off, leave it out where the language allows it.
""",
)
INTEGER_RANGE = Code(
    id="S019",
    title="integer out of range",
    manual="""
Integers lie between -2**63 and 2**63 - 1, so that every program reads the same number.

    vocab_size: 99999999999999999999

Check the number.
""",
)
TOO_DEEP = Code(
    id="S020",
    title="nested too deeply",
    manual="""
Values are nested more than 32 levels deep. No contract needs more than six. Reading stops here.

    [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]

Remove the extra brackets.
""",
)
TOO_MANY_NODES = Code(
    id="S021",
    title="too many values",
    manual="""
The file holds more than 100,000 keys and values. Reading stops here.

    sizes: [1, 1, 1, 1, ...]

If a program writes your contract, let it write one selection per region, not one per layer.
""",
)
DIRECTIVE = Code(
    id="S022",
    title="YAML directive",
    manual="""
Directives (`%YAML`, `%TAG`) would change how the text is read. A contract is always read with the core schema of YAML
1.2.

    %YAML 1.1
    ---
    isoexec: 1

Remove the line that starts with `%`.
""",
)
