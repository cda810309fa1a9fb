"""A no-break space after a colon."""

DATA = "isoexec: 1\ncontract:\u00a0tiny\n".encode()
