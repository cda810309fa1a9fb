"""The shape of a contract: one JSON Schema, for editors and for us."""

from isoexec_compiler.schema.conform import conform
from isoexec_compiler.schema.editor import schema_text
from isoexec_compiler.schema.structure import LANGUAGE

__all__ = ["LANGUAGE", "conform", "schema_text"]
