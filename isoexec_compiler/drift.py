"""Drift: what differs between a contract, its lock and the files on disk, as named facts with the root cause first."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from isoexec_compiler.codes import Code
from isoexec_compiler.identity import Facts, identities
from isoexec_compiler.registry import Value

CONTRACT_CHANGED = Code(
    id="L310",
    title="contract changed since it was compiled",
    manual="""A fact in the lock is not what the contract says now: somebody edited the contract, or the composition,
and did not compile it.

    attn_out / trainer_fwd  constants.leaves 8 -> 16

Run `isoexec compile` and commit the result, or take the edit back. The report names the identity each fact rotates.
""",
)
TEMPLATE_CHANGED = Code(
    id="L311",
    title="template changed since it was compiled",
    manual="""The contract is what it was, but this isoexec renders another text from it: its templates or its renderer
changed, for example by an upgrade.

Review the change of the templates, compile the contract again, and commit the result.
""",
)
EDITED = Code(
    id="L312",
    title="generated file edited by hand",
    manual="""A generated file is not the text that the lock seals. The guard refuses to run it.

Compile the contract again to restore it. A wanted change belongs into the contract or a template.
""",
)
MISSING = Code(
    id="L313",
    title="generated file missing",
    manual="The lock lists a file that is not there. Compile the contract again, or restore it from version control.\n",
)
ORPHAN = Code(
    id="L314",
    title="file that no contract generates",
    manual="""A file lies in the generated package that the lock does not list: nothing checks it.

Remove it. Evidence belongs into `evidence/`.
""",
)
LINE_ENDINGS = Code(
    id="L315",
    title="line endings only",
    manual="""The file differs from the sealed text in its line endings alone: a checkout turned LF into CRLF.

Put `generated/** -text` into .gitattributes and check the files out again.
""",
)
SWAPPED = Code(
    id="L316",
    title="files swapped",
    manual="""A file holds exactly the text that the lock seals under another name: two files were exchanged or one was
copied over another.

Compile the contract again to restore both.
""",
)
NO_LOCK = Code(
    id="L317",
    title="lock missing",
    manual="The generated package has no isoexec.lock. Run `isoexec compile` on the contract and commit the result.\n",
)
LOCK_EDITED = Code(
    id="L318",
    title="lock contradicts itself",
    manual="""A digest in the lock is not the digest of the facts beside it: the lock was edited by hand, or merged
and not compiled again.

Run `isoexec compile` on the contract and commit the result.
""",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One difference: its code, what it concerns, what is said of it, and the identities it rotates."""

    code: str
    subject: str
    detail: str
    rotates: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return f"{self.subject}  {self.detail}"


def compare(wanted: Facts, sealed: Facts, disk: Mapping[str, bytes]) -> tuple[Drift, ...]:
    """Every difference between what the contract compiles to (`wanted`), its lock (`sealed`) and the files (`disk`)."""
    causes = tuple(_contract(wanted, sealed))
    templates = tuple(_templates(wanted, sealed)) if not causes else ()
    return (*_self(sealed), *causes, *templates, *_files(wanted, sealed, disk))


def rotated(fact: str) -> tuple[str, ...]:
    """Which identities a fact of the lock is part of: `semantic`, `sm90 numerical_policy`, `sm90 deployment`, ..."""
    section, _, rest = fact.partition(".")
    target = rest.partition(".")[0]
    match section:
        case "semantic":
            return ("semantic", "numerical_policy", "deployment")
        case "numerical_policy":
            return (f"{target} numerical_policy", f"{target} deployment")
        case "deployment":
            return (f"{target} deployment",)
        case "files":
            return ("deployment",)
    return ()


def changes(before: Facts, after: Facts) -> Iterator[tuple[str, Value | None, Value | None]]:
    """(fact, old, new) of every fact that two locks do not agree on; None where a side has no such fact."""
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if type(old) is not type(new) or old != new:
            yield key, old, new


def describe(fact: str, cases: Mapping[str, str]) -> str:
    """A fact's name for people: kernel facts as `region / case`, the rest as they are. `cases`: module to cases."""
    match = re.fullmatch(r"(?:numerical_policy|deployment)\.(\w+)\.kernels\.(\w+)\.(.*)", fact)
    if not match:
        return fact
    target, module, what = match.groups()
    return f"{module.partition('__')[0]} / {cases.get(module, 'all cases')} ({target})  {what}"


def module_cases(facts: Facts) -> dict[str, str]:
    """Which cases run each kernel module, as text: `all cases` or a list."""
    runs: dict[str, set[str]] = {}
    for key, value in facts.items():
        if match := re.fullmatch(r"numerical_policy\.\w+\.cases\.(\w+)\.\w+", key):
            runs.setdefault(str(value), set()).add(match[1])
    every = set().union(*runs.values()) if runs else set()
    return {module: "all cases" if cases == every else ", ".join(sorted(cases)) for module, cases in runs.items()}


def _derived(fact: str) -> bool:
    return fact.startswith(("files.", "identity.")) or fact.endswith(".source")


def _contract(wanted: Facts, sealed: Facts) -> Iterator[Drift]:
    cases = module_cases(wanted)
    for fact, old, new in changes(sealed, wanted):
        if not _derived(fact):
            yield Drift(
                code=CONTRACT_CHANGED.id,
                subject=describe(fact, cases),
                detail=f"{show(old)} -> {show(new)}",
                rotates=rotated(fact),
            )


def _templates(wanted: Facts, sealed: Facts) -> Iterator[Drift]:
    """Called only when no statement of the contract changed: other texts then come from other templates."""
    cases = module_cases(wanted)
    changed = list(changes(sealed, wanted))
    sources = [fact for fact, _, _ in changed if fact.endswith(".source")]
    for fact in sources:
        use = wanted.get(fact.removesuffix(".source") + ".use")
        what = f"template of {use} changed" if use else "support module changed"
        yield Drift(code=TEMPLATE_CHANGED.id, subject=describe(fact, cases), detail=what, rotates=rotated(fact))
    for fact, _, _ in changed:
        path = fact.removeprefix("files.")
        module = path.rpartition("/")[2].removesuffix(".py")
        if path != fact and not any(f".{module}." in source for source in sources):
            yield Drift(code=TEMPLATE_CHANGED.id, subject=path, detail="its template changed", rotates=rotated(fact))


def _files(wanted: Facts, sealed: Facts, disk: Mapping[str, bytes]) -> Iterator[Drift]:
    digests = {key.removeprefix("files."): value for key, value in sealed.items() if key.startswith("files.")}
    names = {value: path for path, value in digests.items()}
    for path in sorted(digests.keys() | disk.keys()):
        if path not in disk:
            yield Drift(code=MISSING.id, subject=path, detail="missing", rotates=("deployment",))
        elif path not in digests:
            if f"files.{path}" not in wanted:
                yield Drift(code=ORPHAN.id, subject=path, detail="no contract generates this file")
        elif (found := _digest(disk[path])) != digests[path]:
            unix = _digest(disk[path].replace(b"\r\n", b"\n"))
            if unix == digests[path]:
                yield Drift(code=LINE_ENDINGS.id, subject=path, detail="line endings only")
            elif found in names:
                yield Drift(code=SWAPPED.id, subject=path, detail=f"holds the text of {names[found]}")
            else:
                yield Drift(code=EDITED.id, subject=path, detail="edited by hand", rotates=("deployment",))


def _self(sealed: Facts) -> Iterator[Drift]:
    written = {fact: value for fact, value in sealed.items() if fact.startswith("identity.")}
    for fact, _, _ in changes(identities(sealed), written):
        yield Drift(code=LOCK_EDITED.id, subject=fact, detail="is not the digest of the facts in this lock")


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def show(value: Value | None) -> str:
    return "absent" if value is None else str(value)
