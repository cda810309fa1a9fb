"""Where the templates lie and what they say: the only reader of the template folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

RELATIVE_IMPORT = re.compile(r"^\s*from \.+(\w*) import (\([^)]*\)|[^\n#(]+)", re.MULTILINE)
SUFFIX = {"sm90": "triton.py.jinja", "cpu": "torch.py.jinja"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """Template texts by path below the folder, LF line endings."""

    texts: Mapping[str, str]

    def kernel(self, implementation: str, target: str) -> Iterator[tuple[str, str]]:
        """(module suffix, template path) of an implementation: the main one has suffix '', a part `_<part>`."""
        folder, ending = f"kernels/{implementation}/", SUFFIX[target]
        for path in sorted(self.texts):
            if path.startswith(folder) and path.endswith(ending):
                part = path[len(folder) : -len(ending)].rstrip(".")
                yield (f"_{part}" if part else ""), path

    def support(self, texts: Iterable[str]) -> dict[str, str]:
        """Every support module that these texts import, and that those import in turn: {module: text}."""
        known = {p.removeprefix("support/").removesuffix(".py"): t for p, t in self.texts.items() if "support/" in p}
        found: dict[str, str] = {}
        pending = {name for text in texts for name in imports(text)} & known.keys()
        while pending:
            found |= {name: known[name] for name in pending}
            pending = {name for module in pending for name in imports(known[module])} & known.keys() - found.keys()
        return dict(sorted(found.items()))


def imports(text: str) -> Iterator[str]:
    """Modules of its package that a text imports: a for `from ..a import x`, b for `from .. import b`."""
    for module, names in RELATIVE_IMPORT.findall(text):
        yield from [module] if module else (name.split(" as ")[0].strip() for name in names.strip("()").split(","))


def folder() -> Path:
    """The template folder: inside the installed package, or beside it in a source checkout."""
    here = Path(__file__).resolve().parent
    inside = here / "_templates"
    return inside if inside.is_dir() else here.parent / "templates"


def load() -> Templates:
    """Read every template. Raises FileNotFoundError when the installation has none."""
    root = folder()
    if not root.is_dir():
        raise FileNotFoundError(f"no templates at {root}: the installation is broken")
    paths = (p for kind in ("kernels", "adapters", "support") for p in sorted((root / kind).rglob("*.py*")))
    return Templates(
        texts={
            p.relative_to(root).as_posix(): p.read_text(encoding="utf-8").replace("\r\n", "\n")
            for p in paths
            if p.suffix in (".py", ".jinja")
        }
    )
