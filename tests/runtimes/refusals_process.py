"""What a real engine refuses, in one process. usage: refusals_process.py JOB.json RANK

Writes {check: what it said} to OUT/refusals.json; an empty answer means that nothing was refused.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from engine_process import QUIET, close


def said(action: Callable[[], Any]) -> str:
    """The message of what the action raised, with those it came from; empty when it raised nothing."""
    try:
        action()
    except Exception as error:
        texts, seen = [], error
        while seen is not None:
            texts.append(str(seen))
            seen = seen.__cause__ or seen.__context__
        return "\n".join(texts)
    return ""


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    os.environ |= {**QUIET, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    torch.set_num_threads(1)
    sys.path.insert(0, job["generated"])
    from safetensors.torch import load_file, save_file
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    name, out = job["contract"], Path(job["out"])
    settings, driver = (importlib.import_module(f"{name}.adapters.vllm_{m}") for m in ("settings", "driver"))
    handshake, weights, guard = (importlib.import_module(f"{name}.{m}") for m in ("handshake", "weights", "guard"))
    bound = importlib.import_module(f"{name}.regions").BOUND
    own = {
        "model": job["model"],
        "skip_tokenizer_init": True,
        "max_model_len": 128,
        "enforce_eager": True,
        "enable_prefix_caching": True,
        "block_size": 16,
    }
    arguments = settings.engine_arguments(**own)
    found: dict[str, str] = {}

    def built(**changed: Any) -> None:
        close(LLM(**{**arguments, **changed}))

    for check, action in {
        "logprobs mode": lambda: built(logprobs_mode="raw_logprobs"),
        "dtype": lambda: built(dtype="float32"),
        "another model": lambda: built(hf_overrides={"rms_norm_eps": 1e-5, "tie_word_embeddings": True}),
    }.items():
        found[check] = said(action)
        cleanup_dist_env_and_memory()
    with patch.object(guard.metadata, "version", lambda distribution: "0.25.1"):
        found["engine version"] = said(built)
    cleanup_dist_env_and_memory()
    with patch.dict(os.environ, {"TRITON_F32_DEFAULT": "tf32"}):
        found["environment"] = said(built)
    cleanup_dist_env_and_memory()

    llm = LLM(**arguments)
    prompt = [{"prompt_token_ids": list(range(1, 50))}]

    def generate(**changed: Any) -> Any:
        params = SamplingParams(**{"max_tokens": 4, "logprobs": 0, "ignore_eos": True, "detokenize": False, **changed})
        return llm.generate(prompt, params, use_tqdm=False)[0]

    for parameters in (
        {"top_p": 0.8},
        {"top_k": 20},
        {"min_p": 0.05},
        {"logit_bias": {3: 1.0}},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"temperature": 0.6},
        {"allowed_token_ids": [1, 2]},
        {"bad_words": []},
        {"seed": 3, "n": 2},
    ):
        found[f"sampling {json.dumps(parameters)}"] = said(lambda p=parameters: generate(**p))

    settings.restore_sampling()
    found["sampling after the patch is reverted"] = said(lambda: generate(top_p=0.8))
    settings.refuse_foreign_sampling()
    settings.refuse_foreign_sampling()
    found["sampling after the patch is put back twice"] = said(lambda: generate(top_p=0.8))

    before = generate(temperature=0.0)
    path = str(out / "synced.safetensors")
    changed = {
        key: -t if "o_proj" in key else t for key, t in load_file(Path(job["model"]) / "model.safetensors").items()
    }
    save_file(changed, path)
    due = weights.merge([weights.fingerprints(weights.whole(key, t) for key, t in changed.items())])
    held = llm.collective_rpc("isoexec_fingerprints")
    nothing = handshake.Agreement(identity="none")
    found["sync without a handshake"] = said(lambda: driver.sync(llm, nothing, path, due, 1))

    def trainer(**facts: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        (statement,) = llm.collective_rpc("isoexec_statement")
        mine = {**statement, "side": "trainer", "nonce": secrets.token_hex(16), **facts}
        return handshake.hello([mine]), mine

    found["handshake with other probes"] = said(lambda: driver.connect(llm, *trainer(probes={"attn": "0"})))
    found["sync after a refused handshake"] = said(lambda: driver.sync(llm, nothing, path, due, 1))
    found["weights moved by a refused sync"] = "" if llm.collective_rpc("isoexec_fingerprints") == held else "moved"
    agreement = driver.connect(llm, *trainer())
    found["sync"] = said(lambda: driver.sync(llm, agreement, path, due, 1))
    after = generate(temperature=0.0)
    found["prefix cache after sync"] = f"{before.num_cached_tokens} before, {after.num_cached_tokens} after"
    found["new weights used"] = "" if after.outputs[0].token_ids != before.outputs[0].token_ids else "old tokens"
    found["warm again"] = f"{generate(temperature=0.0).num_cached_tokens}"
    wrong = {**due, "model.norm.weight": {**due["model.norm.weight"], "digest": "0" * 16}}
    found["sync of other weights"] = said(lambda: driver.sync(llm, agreement, path, wrong, 2))
    llm.llm_engine.add_request("running", prompt[0], SamplingParams(max_tokens=8, ignore_eos=True, detokenize=False))
    llm.llm_engine.step()
    found["sync under a running request"] = said(lambda: driver.sync(llm, agreement, path, due, 3))
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()

    llm.collective_rpc("isoexec_audit", args=(True,))
    generate()
    found["audit"] = json.dumps(llm.collective_rpc("isoexec_audit", args=(False,)))
    for case in ("engine_prefill", "engine_decode"):
        found[f"first forward {case}"] = said(lambda c=case: llm.collective_rpc("isoexec_first_forward", args=(c,)))
    kernel = bound.table["down", "matmul"]
    bound.table["down", "matmul"] = lambda x, weight: torch.nn.functional.linear(x, weight)
    generate()
    found["swapped kernel"] = said(lambda: llm.collective_rpc("isoexec_first_forward", args=("engine_decode",)))
    found["swapped kernel at a step"] = said(lambda: llm.collective_rpc("isoexec_step", args=(1,)))
    found["swapped kernel in a handshake"] = said(lambda: driver.connect(llm, *trainer(bound="sha256:honest")))
    bound.table["down", "matmul"] = kernel
    found["kernel put back"] = said(lambda: llm.collective_rpc("isoexec_step", args=(2,)))
    found["report"] = json.dumps(driver.report(llm, str(out / "engine.report.json"), syncs=4)["problems"])
    (out / "refusals.json").write_text(json.dumps(found, indent=1))
    os._exit(0)


if __name__ == "__main__":
    main()
