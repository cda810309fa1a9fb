# SPDX-License-Identifier: Apache-2.0
"""What laws share: rendered kernels, integer comparison, inputs with hazards, PTX without a GPU, the interpreter."""
