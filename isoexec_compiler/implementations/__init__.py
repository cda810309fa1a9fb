"""How it is computed: one implementation a file, its constants, launch parameters and rounding points."""
