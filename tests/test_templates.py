"""What a template may hold, and what a kernel's text may not."""

from __future__ import annotations

import ast
import re

import pytest

from isoexec_compiler import registry, template_files

TEXTS = template_files.load().texts
TEMPLATES = sorted(path for path in TEXTS if path.endswith(".jinja"))
TRITON = [path for path in TEMPLATES if path.endswith("triton.py.jinja")]
TORCH = [path for path in TEMPLATES if path.endswith("torch.py.jinja")]
STATEMENT = re.compile(r"^\s*#%.*$", re.MULTILINE)


@pytest.mark.parametrize("path", TEMPLATES)
def test_template_is_python_and_only_substitutes(path: str) -> None:
    text = TEXTS[path]
    ast.parse(text)
    assert text.startswith("{{ header }}\n")
    for inner in re.findall(r"\{\{(.*?)\}\}", text):
        assert re.fullmatch(r" [a-z_0-9]+ ", inner), f"{{{{{inner}}}}} is more than a name"
    for statement in STATEMENT.findall(text):
        assert re.fullmatch(r"\s*#% (if (not )?[a-z_0-9]+|else|endif)", statement), statement
    assert "{%" not in text
    assert "{#" not in text


def test_every_implementation_has_a_template_for_each_target_it_supports_and_no_template_is_orphan() -> None:
    templates = template_files.load()
    wanted = {
        path
        for implementation in registry.implementations().values()
        for target in implementation.dtypes
        for _, path in templates.kernel(implementation.name, target)
    }
    for implementation in registry.implementations().values():
        for target in implementation.dtypes:
            suffixes = [suffix for suffix, _ in templates.kernel(implementation.name, target)]
            assert "" in suffixes, f"{implementation.name} has no template for {target}"
    assert wanted == {path for path in TEMPLATES if path.startswith("kernels/")}


def test_every_registered_thing_stands_in_a_file_of_its_name() -> None:
    for kind in ("ops", "implementations", "families", "runtimes"):
        folder = {"families": "models"}.get(kind, kind)
        for name in getattr(registry, kind)():
            assert __import__(f"isoexec_compiler.{folder}.{name}", fromlist=["x"])


BANNED = {
    r"autotune|heuristics": "nothing tunes itself at run time",
    r"\batomic_": "no atomics",
    r"tl\.sqrt\(": "approximate square root",
    r"tl\.exp\(|tl\.sigmoid\(|tl\.softmax\(": "a form of exp whose bits are not named",
    r"allow_tf32": "say input_precision",
}


@pytest.mark.parametrize("path", TRITON)
def test_triton_text_has_no_banned_form(path: str) -> None:
    for pattern, why in BANNED.items():
        assert not re.search(pattern, TEXTS[path]), why


@pytest.mark.parametrize("path", TRITON)
def test_triton_functions_do_not_divide_with_a_slash(path: str) -> None:
    for function in _jitted(ast.parse(TEXTS[path])):
        for node in ast.walk(function):
            assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)), f"line {node.lineno}"


@pytest.mark.parametrize("path", TRITON)
def test_every_launch_turns_contraction_off_and_states_its_warps(path: str) -> None:
    launches = [
        node
        for node in ast.walk(ast.parse(TEXTS[path]))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and _is_kernel(node.func.value)
    ]
    for launch in launches:
        named = {keyword.arg: keyword.value for keyword in launch.keywords}
        if None in named:
            continue
        assert "num_warps" in named, f"line {launch.lineno}"
        fusion = named.get("enable_fp_fusion")
        assert isinstance(fusion, ast.Constant), f"line {launch.lineno}"
        assert fusion.value is False


TORCH_BANNED = r"torch\.(matmul|mm|bmm|einsum|exp|log|softmax|log_softmax|rsqrt|sigmoid|logsumexp|cumsum)\(|F\.\w+\("


@pytest.mark.parametrize("path", TORCH)
def test_torch_forward_uses_only_functions_whose_bits_are_fixed(path: str) -> None:
    """Outside `backward`, which has no bit contract."""
    tree = ast.parse(TEXTS[path])
    lines = TEXTS[path].splitlines()
    free = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and "backward" in node.name
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    for number, line in enumerate(lines, 1):
        if number not in free:
            assert not re.search(TORCH_BANNED, line), f"line {number}: {line.strip()}"


def _jitted(tree: ast.AST) -> list[ast.FunctionDef]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(item) for item in node.decorator_list)
    ]


def _is_kernel(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.endswith("_kernel")
