"""Sites that the families share: the two ends of the model, the attention block and the dense MLP.

A family calls these with its figures, named as in Hugging Face configs, and puts the sites in forward order.
"""

from isoexec_compiler.registry import Field, Site, Value, Values

ENDS = {
    "vocab_size": Field(type="int", minimum=2, doc="number of token ids"),
    "padded_vocab_size": Field(type="int", minimum=2, doc="vocabulary with padding, the axis that log_softmax sums"),
    "hidden_size": Field(type="int", minimum=1, doc="width of the residual stream"),
    "rms_norm_eps": Field(type="float", minimum=0.0, doc="added to the mean of squares in every norm"),
    "tie_word_embeddings": Field(type="bool", doc="whether the head reads the embedding table"),
    "temperature": Field(type="float", minimum=1e-3, doc="logits are divided by it before log_softmax"),
}

ATTENTION = {
    "num_attention_heads": Field(type="int", minimum=1, doc="query heads"),
    "num_key_value_heads": Field(type="int", minimum=1, doc="key and value heads"),
    "head_dim": Field(type="int", minimum=2, multiple_of=2, doc="width of a head"),
    "rope_theta": Field(type="float", minimum=1.0, doc="base of the rotary frequencies"),
    "max_position_embeddings": Field(type="int", minimum=1, doc="length of the rotary table"),
}

DENSE_MLP = {"intermediate_size": Field(type="int", minimum=1, doc="width of the MLP between its two projections")}


def number(figures: Values, name: str) -> int:
    """A figure that is an integer."""
    return int(figures[name])


def norm(name: str, figures: Values, gamma: str, layers: tuple[int, ...]) -> Site:
    """A norm over the residual stream."""
    attributes = {"width": figures["hidden_size"], "eps": figures["rms_norm_eps"], "gamma": gamma}
    return Site(name=name, op="rms_norm", attributes=attributes, layers=layers)


def matmul(name: str, n: int, k: int, split: str, extent: int, layers: tuple[int, ...]) -> Site:
    """A projection of the residual stream's dtype; `extent` counts what tensor parallelism may not cut through."""
    attributes = {"n": n, "k": k, "split": split, "out": "model"}
    return Site(name=name, op="matmul", attributes=attributes, split=split, extent=extent, layers=layers)  # type: ignore[arg-type]


def residual(name: str, figures: Values, layers: tuple[int, ...]) -> Site:
    """An addition to the residual stream."""
    return Site(name=name, op="residual_add", attributes={"width": figures["hidden_size"]}, layers=layers)


def activation(name: str, width: int, layers: tuple[int, ...]) -> Site:
    """silu(gate) * up between the two projections of an MLP."""
    return Site(name=name, op="silu_gate", attributes={"width": width}, split="columns", extent=width, layers=layers)


def embedding(figures: Values) -> Site:
    """Token ids to the residual stream."""
    attributes = {"vocab": figures["vocab_size"], "width": figures["hidden_size"]}
    extent = number(figures, "padded_vocab_size")
    return Site(name="embed", op="embedding", attributes=attributes, split="vocab", extent=extent)


def attention(figures: Values, layers: tuple[int, ...], gamma: str, rotary_dim: int, gated: bool) -> tuple[Site, ...]:
    """The attention block after its norm: projections, head norms, rotary, attention, residual add.

    `gated` adds a sigmoid gate per query element, projected together with q, k and v.
    """
    heads, groups, dim = (number(figures, n) for n in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    hidden = number(figures, "hidden_size")
    head_norm = {"width": dim, "eps": figures["rms_norm_eps"], "gamma": gamma}
    rotary = {
        "head_dim": dim,
        "rotary_dim": rotary_dim,
        "theta": figures["rope_theta"],
        "max_positions": figures["max_position_embeddings"],
    }
    core: dict[str, Value] = {"q_heads": heads, "kv_heads": groups, "head_dim": dim, "scale": dim**-0.5, "causal": True}

    def per_head(name: str, op: str, attributes: Values) -> Site:
        return Site(name=name, op=op, attributes=attributes, split="heads", extent=heads, layers=layers)

    gate = (per_head("attn_gate", "sigmoid_gate", {"width": heads * dim}),) if gated else ()
    projected = (heads * (2 if gated else 1) + 2 * groups) * dim
    return (
        matmul("qkv", projected, hidden, "columns", heads, layers),
        per_head("q_norm", "rms_norm", head_norm),
        per_head("k_norm", "rms_norm", head_norm),
        per_head("rope", "rotary", rotary),
        per_head("attn", "attention", core),
        *gate,
        matmul("attn_out", hidden, heads * dim, "rows", heads * dim, layers),
        residual("attn_residual", figures, layers),
    )


def dense_mlp(figures: Values, layers: tuple[int, ...]) -> tuple[Site, ...]:
    """The gated MLP after its norm, with its residual add."""
    hidden, inner = number(figures, "hidden_size"), number(figures, "intermediate_size")
    return (
        matmul("gate_up", 2 * inner, hidden, "columns", inner, layers),
        activation("act", inner, layers),
        matmul("down", hidden, inner, "rows", inner, layers),
        residual("mlp_residual", figures, layers),
    )


def head(figures: Values, gamma: str) -> tuple[Site, ...]:
    """The residual stream to log-probabilities."""
    vocab, hidden = number(figures, "vocab_size"), number(figures, "hidden_size")
    padded = number(figures, "padded_vocab_size")
    logits: dict[str, Value] = {"n": vocab, "k": hidden, "split": "columns", "out": "fp32"}
    softmax: dict[str, Value] = {"vocab": vocab, "padded_vocab": padded, "temperature": figures["temperature"]}
    return (
        norm("final_norm", figures, gamma, ()),
        Site(name="head", op="matmul", attributes=logits, split="columns", extent=padded),
        Site(name="logprobs", op="log_softmax", attributes=softmax, split="vocab", extent=padded),
    )
