"""`python -m tests.update_contracts`: rewrite `contracts/` from `tests/configs/`, for review in the diff."""

import json
from pathlib import Path

from isoexec_compiler.init import contract_text
from isoexec_compiler.schema import schema_text

CONFIGS = Path(__file__).parent / "configs"
CONTRACTS = Path(__file__).parent.parent / "contracts"
SCHEMA = CONTRACTS / "contract.schema.json"


def contracts() -> dict[Path, str]:
    """Every contract that is kept in the repository, with its text."""
    return {
        CONTRACTS / f"{config.stem}.yaml": contract_text(json.loads(config.read_bytes()), config.stem)
        for config in sorted(CONFIGS.glob("*.json"))
    }


def main() -> None:
    """Write each contract and the schema."""
    for path, text in {**contracts(), SCHEMA: schema_text()}.items():
        path.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
