# SPDX-License-Identifier: Apache-2.0
"""What `isoexec prove` examines: one law a file."""
