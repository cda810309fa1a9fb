# SPDX-License-Identifier: Apache-2.0
"""Target cpu of contract qwen3_0_6b."""
