"""Whether two selections of a region give the same bits."""

from isoexec_compiler.contract import Selection
from isoexec_compiler.registry import implementations


def pinned(selection: Selection) -> tuple[object, ...]:
    """Everything about a selection that moves bits: two selections that agree in it run one arithmetic."""
    use = implementations().get(selection.use)
    launch = {
        target: {
            name: value
            for name, value in (buckets[0].parameters if buckets else {}).items()
            if use and name in use.launch.get(target, {}) and not use.launch[target][name].free
        }
        for target, buckets in selection.launch.items()
    }
    return selection.use, dict(selection.constants), {target: values for target, values in launch.items() if values}


def exact(a: Selection, b: Selection) -> bool:
    """Whether the same bits come of both: they run one arithmetic, or a law shows their implementations equal."""
    if pinned(a) == pinned(b):
        return True
    first, second = implementations().get(a.use), implementations().get(b.use)
    if first is None or second is None:
        return False
    shared = a.constants.keys() & b.constants.keys()
    agree = all(a.constants[name] == b.constants[name] for name in shared)
    return agree and (second.name in first.exact_with or first.name in second.exact_with)
