# SPDX-License-Identifier: Apache-2.0
"""Target sm90 of contract qwen3_5_35b_a3b."""
