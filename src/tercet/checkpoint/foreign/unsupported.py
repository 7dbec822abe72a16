"""Model types of `transformers` that Tercet does not support, with the unsupported part, for error messages."""

EXPERTS = "a mixture of experts"

UNSUPPORTED_TYPES = {
    "albert": "weights of one block shared by all blocks",
    "deberta": "attention to relative positions",
    "deberta-v2": "attention to relative positions",
    "gemma3": "images",
    "longformer": "sliding-window attention",
    "mixtral": EXPERTS,
    "mpnet": "relative position buckets in a BERT encoder",
    "qwen2_moe": EXPERTS,
    "qwen3_moe": EXPERTS,
}
