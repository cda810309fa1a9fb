"""What people ask for that no region, kernel or adapter here computes, refused by the name it is asked under."""

from collections.abc import Mapping
from typing import Any

from isoexec_compiler.codes import Code

UNSUPPORTED = Code(
    id="C108",
    title="unsupported feature",
    manual="""
The contract asks for something whose bits nothing here pins: attention sinks, soft caps, sliding windows, ALiBi,
multi-head latent attention, LoRA adapters, FP8 and other quantised formats, overlapped communication, and so on.

    runtimes:
      trainer: {use: megatron, version: "0.19.2", cases: [trainer_fwd], tp_comm_overlap: true}

Such a key is never ignored: a contract that compiles computes what it says. Take the feature out of the model or the
launch of the runtime, or do not use this contract for that model.
""",
)

_ATTENTION = "attention is causal softmax over all earlier keys; nothing else has a kernel"
_OVERLAP = "communication overlapped with compute adds in the order of arrival"
_QUANTISED = "regions read bf16 or fp32; a quantised operand's scale may depend on its neighbours in the batch"
_ADAPTERS = "a LoRA adapter adds a product that no region covers"
_ROTARY = "the rotary table is made from unscaled frequencies"

FEATURES: Mapping[str, tuple[str, str]] = {
    "sinks": ("attention sinks", _ATTENTION),
    "attention_sinks": ("attention sinks", _ATTENTION),
    "softcap": ("soft-capped scores", _ATTENTION),
    "logits_soft_cap": ("soft-capped scores", _ATTENTION),
    "attn_logit_softcapping": ("soft-capped scores", _ATTENTION),
    "final_logit_softcapping": ("soft-capped logits", "log_softmax reads the logits as the head wrote them"),
    "window": ("sliding-window attention", _ATTENTION),
    "sliding_window": ("sliding-window attention", _ATTENTION),
    "use_sliding_window": ("sliding-window attention", _ATTENTION),
    "alibi": ("ALiBi", _ATTENTION),
    "alibi_slopes": ("ALiBi", _ATTENTION),
    "mla": ("multi-head latent attention", _ATTENTION),
    "kv_lora_rank": ("multi-head latent attention", _ATTENTION),
    "q_lora_rank": ("multi-head latent attention", _ATTENTION),
    "attention_bias": ("biased projections", "projections have no bias"),
    "kv_cache_dtype": ("a key-value cache in another dtype", "keys and values are cached in the model dtype"),
    "num_splits": ("split key-value attention", "the split of the keys is an implementation's constant"),
    "lora": ("LoRA", _ADAPTERS),
    "lora_rank": ("LoRA", _ADAPTERS),
    "enable_lora": ("LoRA", _ADAPTERS),
    "fp8": ("FP8", _QUANTISED),
    "quantization": ("quantised weights", _QUANTISED),
    "quantization_config": ("quantised weights", _QUANTISED),
    "rope_scaling": ("scaled rotary frequencies", _ROTARY),
    "tp_comm_overlap": ("overlapped communication", _OVERLAP),
    "comm_overlap": ("overlapped communication", _OVERLAP),
    "user_buffers": ("user-buffer communication", _OVERLAP),
    "use_userbuffer": ("user-buffer communication", _OVERLAP),
    "fuse_allreduce_rms": ("a norm fused into an all-reduce", "the network only moves bytes; sums are kernels here"),
    "top_k_sampling": ("truncated sampling", "log-probabilities are those of the whole vocabulary"),
    "top_p": ("truncated sampling", "log-probabilities are those of the whole vocabulary"),
    "min_p": ("truncated sampling", "log-probabilities are those of the whole vocabulary"),
    "repetition_penalty": ("penalties", "log-probabilities are those of the model, before any penalty"),
    "logit_bias": ("a logit bias", "log-probabilities are those of the model, before any bias"),
}


def asked_for(key: str, value: Any) -> bool:
    """Whether a key with this value asks for an unsupported feature; `false`, 0, null, "none" and empty do not."""
    return key in FEATURES and bool(value) and str(value).lower() not in ("none", "off", "auto")
