"""A contract as YAML: what `isoexec init` prints. Reading and binding the text gives the contract back."""

from collections.abc import Iterator, Mapping

from isoexec_compiler.contract import (
    Bucket,
    Claim,
    Contract,
    EqualBitsClaim,
    Region,
    Selection,
    StateClaim,
    ToleranceClaim,
    TopologyClaim,
)
from isoexec_compiler.facts import cases
from isoexec_compiler.fields import show
from isoexec_compiler.registry import Value
from isoexec_compiler.schema import LANGUAGE

MODEL = "What network this is. Figures bear the names of the Hugging Face config where it has them."
REGIONS = "Every place of the forward pass where floats are computed, from token ids to log-probabilities."
COMPOSITION = """What computes each region. Constants pin the arithmetic on every target; launch parameters are a
# target's own, by number of rows where they come as a list."""
CLAIMS = "What must hold beyond equal kernels giving equal bits."


def contract_text(contract: Contract) -> str:
    """The YAML text of a contract."""
    return "\n".join(_lines(contract)) + "\n"


def _lines(contract: Contract) -> Iterator[str]:
    yield f"isoexec: {LANGUAGE}"
    yield f"contract: {contract.name}"
    yield f"\n# {MODEL}\nmodel:"
    yield f"  family: {contract.model.family}"
    yield f"  dtype: {contract.model.dtype}"
    yield "  config:"
    yield from (f"    {name}: {show(value)}" for name, value in contract.model.config.items())
    pattern, repeat = _period(contract.model.layers)
    yield f"  layers: {{pattern: {_list(pattern)}, repeat: {repeat}}}"
    yield f"\ntargets: {_list(contract.targets)}"
    yield "\nruntimes:"
    for use in contract.runtimes:
        yield f'  {use.side}: {{use: {use.use}, version: "{use.version}", cases: {_list(use.cases)}}}'
    yield f"\n# {REGIONS}\nregions:"
    yield from (f"  {_region(region)}" for region in contract.regions)
    yield f"\n# {COMPOSITION}\ncomposition:"
    for selection, regions in _shared(contract):
        yield from selection_lines(selection, regions, every=set(selection.cases) == set(cases(contract)))
    yield f"\n# {CLAIMS}\nclaims:" if contract.claims else "\nclaims: []"
    yield from (f"  - {_claim(claim)}" for claim in contract.claims)
    if contract.waivers:
        yield "\nwaivers:"
    for waiver in contract.waivers:
        reason = waiver.reason.replace("\\", "\\\\").replace('"', '\\"')
        yield f'  - {{obligation: {waiver.obligation}, reason: "{reason}", expires: "{waiver.expires}"}}'


def _period(layers: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """The shortest pattern that repeats to `layers`, and how often."""
    length = next(
        n for n in range(1, len(layers) + 1) if len(layers) % n == 0 and layers[:n] * (len(layers) // n) == layers
    )
    return layers[:length], len(layers) // length


def _region(region: Region) -> str:
    return f"{region.name}: {_map({'op': region.op, **region.attributes})}"


def _shared(contract: Contract) -> Iterator[tuple[Selection, list[str]]]:
    """Selections that differ in nothing but their region, with the regions, in order of the first."""
    groups: list[tuple[Selection, list[str]]] = []
    for selection in contract.composition:
        for first, regions in groups:
            if _settings(first) == _settings(selection):
                regions.append(selection.region)
                break
        else:
            groups.append((selection, [selection.region]))
    return iter(groups)


def _settings(selection: Selection) -> tuple[object, ...]:
    return selection.cases, selection.use, selection.constants, selection.launch


def selection_lines(selection: Selection, regions: list[str], *, every: bool) -> Iterator[str]:
    """One line of the composition, for regions that agree; `every` writes its cases as `all`."""
    yield f"  - region: {regions[0] if len(regions) == 1 else _list(regions)}"
    yield f"    cases: {'all' if every else _list(selection.cases)}"
    yield f"    use: {selection.use}"
    if selection.constants:
        yield f"    constants: {_map(selection.constants)}"
    if selection.launch:
        yield "    launch:"
    for target, buckets in selection.launch.items():
        if len(buckets) == 1 and buckets[0].max_rows is None:
            yield f"      {target}: {_map(buckets[0].parameters)}"
        else:
            yield f"      {target}:"
            yield from (f"        - {_bucket(bucket)}" for bucket in buckets)


def _bucket(bucket: Bucket) -> str:
    bound = {} if bucket.max_rows is None else {"max_rows": bucket.max_rows}
    return _map({**bound, **bucket.parameters})


def _claim(claim: Claim) -> str:
    match claim:
        case TopologyClaim():
            across = f", across: {_list(claim.across)}" if claim.across else ""
            return f"{{topology: {claim.topology}, sizes: {_list(claim.sizes)}{across}}}"
        case EqualBitsClaim():
            return f"{{equal_bits: {claim.region}, cases: {_list(claim.cases)}}}"
        case StateClaim():
            return f"{{state: {claim.state}, invalidated_by: {_list(claim.invalidated_by)}, resume: {claim.resume}}}"
        case ToleranceClaim():
            return f"{{tolerance: {_list(claim.cases)}, max_abs_logprob: {show(claim.max_abs_logprob)}}}"


def _map(values: Mapping[str, Value]) -> str:
    return "{" + ", ".join(f"{name}: {show(value)}" for name, value in values.items()) + "}"


def _list(items: tuple[Value, ...] | list[str]) -> str:
    return "[" + ", ".join(map(show, items)) + "]"
