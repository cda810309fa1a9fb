# SPDX-License-Identifier: Apache-2.0
"""Adapters of contract qwen3_0_6b, one framework a module."""
