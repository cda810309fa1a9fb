"""What `isoexec prove` examines: one law a file."""
