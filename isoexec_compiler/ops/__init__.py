"""What is computed: one op a file, its attributes and its float64 reference."""
