"""Sites of a mixture of experts, with or without a shared expert beside the routed ones."""

from isoexec_compiler import huggingface
from isoexec_compiler.models import blocks
from isoexec_compiler.registry import Field, Site, Unsupported, Value, Values

EXPERTS = {
    "num_experts": Field(type="int", minimum=2, maximum=1024, doc="routed experts"),
    "num_experts_per_tok": Field(type="int", minimum=1, maximum=32, doc="experts of one token"),
    "moe_intermediate_size": Field(type="int", minimum=1, doc="width of an expert between its two projections"),
    "norm_topk_prob": Field(type="bool", doc="whether the weights of the chosen experts sum to one"),
    "expert_weight_on": Field(
        type="enum",
        choices=("activation", "output"),
        doc="whether an expert's weight multiplies its activation or its output",
    ),
}

SHARED = {"shared_expert_intermediate_size": Field(type="int", minimum=1, doc="width of the shared expert")}


def routed(figures: Values, layers: tuple[int, ...]) -> tuple[Site, ...]:
    """The router, the chosen experts, and the sum over them.

    Weights that sum to one are the softmax over the chosen logits alone; others are of the softmax over all.
    """
    hidden, width = blocks.number(figures, "hidden_size"), blocks.number(figures, "moe_intermediate_size")
    experts, top_k = blocks.number(figures, "num_experts"), blocks.number(figures, "num_experts_per_tok")
    on_output = figures["expert_weight_on"] == "output"
    router: dict[str, Value] = {
        "hidden": hidden,
        "experts": experts,
        "top_k": top_k,
        "softmax": "selected" if figures["norm_topk_prob"] else "all",
        "renormalise": bool(figures["norm_topk_prob"]),
        "scaling": 1.0,
    }
    projection = {"experts": experts, "top_k": top_k, "hidden": hidden, "width": width}

    def cut(name: str, op: str, attributes: Values) -> Site:
        return Site(name=name, op=op, attributes=attributes, split="experts", extent=experts, layers=layers)

    return (
        Site(name="router", op="router", attributes=router, layers=layers),
        cut("expert_gate_up", "expert_gate_up", projection),
        cut("expert_act", "expert_act", {"top_k": top_k, "width": width, "weighted": not on_output}),
        cut("expert_down", "expert_down", projection),
        Site(
            name="expert_combine",
            op="expert_combine",
            attributes={"hidden": hidden, "top_k": top_k, "weighted": on_output},
            layers=layers,
        ),
    )


def shared(figures: Values, layers: tuple[int, ...]) -> tuple[Site, ...]:
    """The expert that every token goes through, its gate, and its sum with the routed ones."""
    hidden, inner = blocks.number(figures, "hidden_size"), blocks.number(figures, "shared_expert_intermediate_size")
    return (
        blocks.matmul("shared_gate_up", 2 * inner, hidden, "columns", inner, layers),
        blocks.activation("shared_act", inner, layers),
        blocks.matmul("shared_down", hidden, inner, "rows", inner, layers),
        Site(name="shared_gate", op="shared_gate", attributes={"hidden": hidden}, layers=layers),
        Site(name="shared_combine", op="shared_combine", attributes={"hidden": hidden}, layers=layers),
    )


def from_hf(config: huggingface.Config, *, norm_topk_prob: bool) -> dict[str, Value]:
    """The figures of the routed experts; `norm_topk_prob` is what a config means that does not say.

    Raises `Unsupported` where some layers have no experts.
    """
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise Unsupported("layers without experts (`mlp_only_layers`, `decoder_sparse_step`) have no region")
    return {
        "num_experts": huggingface.integer(config, "num_experts", "num_local_experts"),
        "num_experts_per_tok": huggingface.integer(config, "num_experts_per_tok"),
        "moe_intermediate_size": huggingface.integer(config, "moe_intermediate_size"),
        "norm_topk_prob": bool(config.get("norm_topk_prob", norm_topk_prob)),
        "expert_weight_on": "activation",
    }
