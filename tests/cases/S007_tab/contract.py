"""Tabs for indentation and for a space."""

DATA = b"model:\n\tfamily:\tqwen3\n"
