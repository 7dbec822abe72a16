"""Models of `transformers` with a part that Tercet does not support, by model_type."""

EXPERTS = "a mixture of experts"
WINDOWS = "attention within a window, by another rotation, in most layers"
TWO_TOKENS = "two tokens before a target"

UNSUPPORTED_TYPES = {
    "albert": "the weights of one block for all",
    "bart": TWO_TOKENS,
    "deberta": "attention to relative positions",
    "deberta-v2": "attention to relative positions",
    "gemma2": "a cap on attention's scores",
    "gemma3": WINDOWS,
    "gemma3_text": WINDOWS,
    "longformer": "attention within a window",
    "mbart": TWO_TOKENS,
    "mixtral": EXPERTS,
    "modernbert": WINDOWS,
    "mpnet": "relative position buckets in an encoder of BERT's kind",
    "olmo2": "norms over the queries of all heads together",
    "qwen2_moe": EXPERTS,
    "qwen3_moe": EXPERTS,
    "smollm3": "layers with and without a rotation",
}
