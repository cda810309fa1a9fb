# SPDX-License-Identifier: Apache-2.0
"""Target cpu of contract tiny_dense."""
