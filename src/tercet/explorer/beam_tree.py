"""The final hypotheses of a beam search as a tree of their common prefixes."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tercet.checkpoint import Translator
from tercet.config import Plain, UserError
from tercet.explorer.passes import Pass
from tercet.generation import Beam, beam_search
from tercet.generation.beam import Hypothesis
from tercet.models import record

MAX_WIDTH = 20


def beam_tree(forward_pass: Pass, width: int) -> Plain:
    """Return the tree of the `width` hypotheses that beam search finds for the source of the pass.

    Raises:
        UserError: If the model is not a translator, `width` is not 1 to MAX_WIDTH, or an edit is restricted to some
            positions.
    """
    trained_model = forward_pass.trained_model
    if not isinstance(trained_model, Translator):
        raise UserError(f"beam search requires a translator: {trained_model.folder} is not one; load a translator")
    model, tokenizer = trained_model.model, trained_model.tokenizer
    if not 1 <= width <= MAX_WIDTH:
        raise UserError(f"size={width}: the number of hypotheses must be 1 to {MAX_WIDTH}")
    if any(ablation.positions is not None for ablation in forward_pass.query.edits):
        raise UserError("cannot edit single positions in a beam search, which adds token by token; edit all positions")
    eos = tokenizer.eos_id
    assert eos is not None  # otherwise the pass could not have been encoded
    source = list(forward_pass.recording.sides["encoder"].ids)
    search = Beam(size=width, n_best=width)
    with ExitStack() as edits:
        if forward_pass.edits:
            edits.enter_context(record(model, edits=forward_pass.edits, patterns=()))
        hypotheses = beam_search(
            model,
            [tokenizer.target_opening],
            search,
            eos_id=eos,
            forbidden=frozenset(
                token for token in (*tokenizer.special_ids, tokenizer.pad_id, tokenizer.unk_id) if token is not None
            )
            - {eos},
            sources=[source],
            max_new_tokens=search.longest(len(source)),
        )[0]
    return {"nodes": build_tree(hypotheses, tokenizer.tokens), "search": search.name}


def build_tree(hypotheses: Sequence[Hypothesis], texts_of: Callable[[Sequence[int]], list[str]]) -> list[Plain]:
    """Return one node for each distinct prefix of the hypotheses, parents before children.

    A node contains the number of its parent (-1 at the root), its last token with its log-probability, and the total
    log-probability of the prefix. `score` and `finish` are set if a hypothesis ends there. `best` is True on the path
    of the first hypothesis.

    Args:
        hypotheses: Hypotheses, best first.
        texts_of: Function that returns the text of each token id.
    """
    nodes: list[Plain] = []
    node_of_prefix: dict[tuple[int, ...], int] = {}
    for rank, hypothesis in enumerate(hypotheses):
        total, parent = 0.0, -1
        texts = texts_of(hypothesis.ids)
        for n, (token, logprob) in enumerate(zip(hypothesis.ids, hypothesis.logprobs, strict=True), 1):
            total += logprob
            prefix = hypothesis.ids[:n]
            if prefix not in node_of_prefix:
                node_of_prefix[prefix] = len(nodes)
                node = {"parent": parent, "id": token, "text": texts[n - 1], "logprob": logprob, "total": total}
                nodes.append({**node, "score": None, "finish": None, "best": False})
            parent = node_of_prefix[prefix]
            nodes[parent]["best"] |= rank == 0
        if parent >= 0:
            nodes[parent] |= {"score": hypothesis.score, "finish": hypothesis.finish}
    return nodes
