# SPDX-License-Identifier: Apache-2.0
"""Target sm90 of contract tiny_moe."""
