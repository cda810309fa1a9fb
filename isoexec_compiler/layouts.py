"""Parallel layouts: what a contract claims, and whether a site can be cut that way with the bits of one rank."""

from collections.abc import Iterator

from isoexec_compiler.contract import Contract, TopologyClaim
from isoexec_compiler.registry import Implementation, Site, Values


def topologies(contract: Contract) -> Iterator[TopologyClaim]:
    """The topology claims."""
    return (claim for claim in contract.claims if isinstance(claim, TopologyClaim))


def sizes(contract: Contract, topology: str) -> dict[int, TopologyClaim]:
    """The powers of two above 1 that are claimed for `tp` or `ep`, with the claim."""
    return {
        size: claim
        for claim in topologies(contract)
        if claim.topology == topology
        for size in claim.sizes
        if isinstance(size, int) and size > 1 and size & (size - 1) == 0
    }


def uncuttable(site: Site, topology: str, size: int) -> str | None:
    """Why `size` ranks cannot hold equal parts of a site, or None. Topologies are `tp` and `ep`."""
    for what, extent in _cut(site, topology):
        if extent % size:
            return f"{extent} {what} are not a multiple of {size}"
    groups = site.attributes.get("kv_heads", 1)
    if topology == "tp" and isinstance(groups, int) and groups % size and size % groups:
        return f"{groups} key and value heads neither divide nor are divided by {size}"
    return None


def _cut(site: Site, topology: str) -> tuple[tuple[str, int], ...]:
    """The axes of a site that a topology cuts, with their lengths. Tensor parallelism cuts the width of each expert."""
    if site.split == "experts":
        width = site.attributes.get("width")
        return (("experts", site.extent),) if topology == "ep" else (("columns of an expert", int(width or 0)),)
    units = {
        "columns": "groups of columns",
        "rows": "terms",
        "heads": "heads",
        "vocab": "rows of the padded vocabulary",
    }
    return ((units[site.split], site.extent),) if topology == "tp" and site.split in units else ()


def unsummable(site: Site, use: Implementation, attributes: Values, constants: Values, size: int) -> str | None:
    """Why the sums of `size` ranks of tensor parallelism do not give the bits of one, or None."""
    if site.split not in ("rows", "vocab", "experts"):
        return None
    if use.tree is None:
        return f"{use.name} sums all {site.extent} terms on one rank" if site.split == "rows" else None
    tree = use.tree(attributes, constants)
    reason = tree.obstacle(size)
    if tree.shape == "chain":
        reason = reason or "one rank carries a running sum from leaf to leaf, and further ranks would start anew"
    return reason and f"{reason} (K = {tree.leaves * tree.leaf}, {tree.leaves} leaves of {tree.leaf})"
