"""What laws share: rendered kernels, integer comparison, inputs with hazards, PTX without a GPU, the interpreter."""
