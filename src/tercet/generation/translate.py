"""Translation: lines are encoded, sorted by length and searched in batches.

As in training, a source ends with the end token, and a target begins with the beginning token. The translation of a
line does not depend on the other lines.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from tercet.config import UserError
from tercet.data.rows.batching import BATCH_TOKENS, map_by_length
from tercet.generation.beam import Hypothesis, beam_search
from tercet.generation.protocol import CacheType, SourceDecoder
from tercet.generation.specs import Beam, Sampling
from tercet.generation.stream import Token, stream
from tercet.notebook import Summary, Table, View
from tercet.tokens import Tokenizer

BEAM = Beam()


@dataclass(frozen=True, kw_only=True, repr=False)
class Translation(Summary):
    """A translation of a line.

    `ids` and `logprobs` contain all tokens after the prefix, including the end token; `text` begins with the prefix and
    does not contain the end token. `logprobs` are natural logarithms of the model's probabilities, `logprob` is their
    sum.
    """

    source: str  # without outer white space
    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    logprob: float
    score: float  # score of the beam search; for a sample, its mean log-probability
    finish: Literal["eos", "length"]
    truncated: bool  # the source exceeded the model's maximum length, so its end was cut off

    def view(self) -> View:
        facts = {"source": self.source, "translation": self.text, "score": f"{self.score:.4f}", "ended by": self.finish}
        table = Table(rows=list(facts.items()), left=(0, 1), pale_first=True)
        return View((table, "the end of the source was cut off" * self.truncated))


def translate(
    model: SourceDecoder[CacheType],
    tokenizer: Tokenizer,
    texts: Sequence[str],
    search: Beam | Sampling = BEAM,
    *,
    source_tokenizer: Tokenizer | None = None,
    prefixes: Sequence[str] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    allow_unknown: bool = False,
) -> list[list[Translation]]:
    """Translate each text into the `n_best` hypotheses of a beam search, best first, or into one sample.

    An empty text has one translation, which consists of its prefix only.

    Args:
        model: An `EncoderDecoder`, or an `Ensemble` of several.
        tokenizer: Target tokenizer; also the source tokenizer if `source_tokenizer` is None.
        texts: Texts to translate.
        search: Search settings. The length of a sample is limited by that of a default `Beam()` and by
            `max_new_tokens`; each sample is drawn with the `seed` of the `Sampling`, as if it were the only one.
        source_tokenizer: Source tokenizer, if it differs from the target tokenizer.
        prefixes: Text with which each translation begins; None for no prefixes.
        batch_tokens: Maximum number of source tokens per batch, including padding and counted once per hypothesis of
            the beam. A longer line is a separate batch.
        allow_unknown: If True, allow the unknown token in translations. Padding and other special tokens are never
            allowed.

    Raises:
        UserError: If the target tokenizer has no beginning token, a tokenizer has no end token, a text cannot be
            encoded, or the model's outputs are NaN.
        ValueError: If the numbers of texts and prefixes differ, a prefix is too long for the model, `batch_tokens` is
            less than 1, or `search` has stop strings.
    """
    translator = _LineTranslator(model, tokenizer, source_tokenizer, search, batch_tokens, allow_unknown)
    if prefixes is not None and len(prefixes) != len(texts):
        raise ValueError(f"expected {len(texts)} prefixes, one per text, got {len(prefixes)}")
    return translator.translate(texts, prefixes)


def translate_stream(
    model: SourceDecoder[CacheType],
    tokenizer: Tokenizer,
    lines: Iterable[str],
    search: Beam | Sampling = BEAM,
    *,
    source_tokenizer: Tokenizer | None = None,
    batch_tokens: int = BATCH_TOKENS,
    allow_unknown: bool = False,
    pool: int = 1024,
) -> Iterator[list[Translation]]:
    """Yield the translations of each line, for any number of lines.

    Args:
        lines: Lines to translate.
        pool: Number of lines that are read, sorted by length and translated together. The other arguments are those of
            `translate`.

    Raises:
        UserError: If `translate` raises it for these lines.
        ValueError: If `pool` is less than 1, or `translate` rejects the other arguments.
    """
    if pool < 1:
        raise ValueError(f"pool={pool} must be 1 or more")
    translator = _LineTranslator(model, tokenizer, source_tokenizer, search, batch_tokens, allow_unknown)
    return _translate_in_pools(lines, pool, translator.translate)


def source_lines(text: str) -> list[str]:
    """Return the lines of a text, which are translated separately.

    Translation models are trained on single sentences and tend to omit further ones.
    """
    return text.strip().split("\n")


def translate_lines(
    texts: Sequence[str], translate_all: Callable[[list[str]], Sequence[Sequence[Translation]]]
) -> list[str]:
    """Return the best translation of each text, with the same number of lines.

    Args:
        texts: Texts of one or more lines.
        translate_all: Function that returns the translations of each line, best first. It is called once, with the
            lines of all texts.
    """
    lines = list(map(source_lines, texts))
    best = (hypotheses[0].text for hypotheses in translate_all([line for text in lines for line in text]))
    return ["\n".join(islice(best, len(text))) for text in lines]


def encode_sources(tokenizer: Tokenizer, texts: Sequence[str], *, max_len: int) -> tuple[list[list[int]], list[bool]]:
    """Return the source ids of each text without outer white space, and whether each text was truncated.

    Args:
        tokenizer: Source tokenizer.
        texts: Source texts.
        max_len: Maximum number of ids per text, including the opening and the end token.

    Raises:
        UserError: If a text cannot be encoded.
    """
    all_ids = [ids.tolist() for ids in tokenizer.encode_batch([text.strip() for text in texts])]
    free_tokens = max_len - 1 - len(tokenizer.opening)  # without the opening and the end token
    return [tokenizer.frame(ids, max_len=max_len) for ids in all_ids], [len(ids) > free_tokens for ids in all_ids]


def _translate_in_pools(
    lines: Iterable[str], pool: int, translate: Callable[[Sequence[str]], list[list[Translation]]]
) -> Iterator[list[Translation]]:
    iterator = iter(lines)
    while texts := list(islice(iterator, pool)):
        yield from translate(texts)


class _LineTranslator:
    """Translates lines with the same settings, which are checked when it is created."""

    def __init__(
        self,
        model: SourceDecoder[CacheType],
        tokenizer: Tokenizer,
        source_tokenizer: Tokenizer | None,
        search: Beam | Sampling,
        batch_tokens: int,
        allow_unknown: bool,
    ) -> None:
        if batch_tokens < 1:
            raise ValueError(f"batch_tokens={batch_tokens} must be 1 or more")
        if isinstance(search, Sampling) and search.stop:
            raise ValueError(f"stop={search.stop} is not supported: a translation ends with its end token; remove stop")
        if isinstance(search, Sampling) and (search.json_schema, search.regex) != (None, None):
            raise ValueError("json_schema and regex are not supported for translations; remove them")
        self.model, self.tokenizer, self.search = model, tokenizer, search
        self.source_tokenizer = tokenizer if source_tokenizer is None else source_tokenizer
        bos_id = _require_id(tokenizer.bos_id, "target", "beginning")
        self.eos_id = _require_id(tokenizer.eos_id, "target", "end")
        _require_id(self.source_tokenizer.eos_id, "source", "end")
        special_ids = {tokenizer.pad_id, *tokenizer.special_ids, *([] if allow_unknown else [tokenizer.unk_id])}
        self.forbidden = frozenset(token for token in special_ids | {bos_id} if token is not None) - {self.eos_id}
        self.batch_tokens = batch_tokens

    def translate(self, texts: Sequence[str], prefixes: Sequence[str] | None = None) -> list[list[Translation]]:
        texts = [text.strip() for text in texts]
        prefixes = [""] * len(texts) if prefixes is None else prefixes
        sources, cut = encode_sources(self.source_tokenizer, texts, max_len=self.model.max_len)
        rows = [[*self.tokenizer.target_opening, *ids.tolist()] for ids in self.tokenizer.encode_batch(prefixes)]
        if (longest := max(map(len, rows), default=0)) > self.model.max_len:
            raise ValueError(
                f"a prefix has {longest} tokens with its beginning token; the maximum is max_len={self.model.max_len}"
            )
        answers = [[_empty_translation(prefix)] for prefix in prefixes]
        non_empty = [number for number, text in enumerate(texts) if text]
        copies = self.search.size if isinstance(self.search, Beam) else 1

        def search(slots: list[int]) -> list[list[Hypothesis]]:
            numbers = [non_empty[slot] for slot in slots]
            return self._search([rows[number] for number in numbers], [sources[number] for number in numbers])

        results = map_by_length(search, [copies * len(sources[number]) for number in non_empty], self.batch_tokens)
        for number, hypotheses in zip(non_empty, results, strict=True):
            answers[number] = [
                Translation(
                    source=texts[number],
                    text=self._text(prefixes[number], rows[number], hypothesis),
                    truncated=cut[number],
                    **vars(hypothesis),
                )
                for hypothesis in hypotheses
            ]
        return answers

    def _search(self, rows: Sequence[list[int]], sources: Sequence[list[int]]) -> list[list[Hypothesis]]:
        if isinstance(self.search, Sampling):
            return self._sample(rows, sources, self.search)
        return beam_search(
            self.model,
            rows,
            self.search,
            eos_id=self.eos_id,
            forbidden=self.forbidden,
            sources=sources,
            max_new_tokens=[self.search.longest(len(source)) for source in sources],
            min_new_tokens=[self.search.shortest(len(source)) for source in sources],
        )

    def _sample(
        self, rows: Sequence[list[int]], sources: Sequence[list[int]], sampling: Sampling
    ) -> list[list[Hypothesis]]:
        free_tokens = [self.model.max_len + 1 - len(row) for row in rows]
        limits = [
            min(sampling.max_new_tokens, free, BEAM.longest(len(source)))
            for free, source in zip(free_tokens, sources, strict=True)
        ]
        row_tokens: list[list[Token]] = [[] for _ in rows]
        finished_rows: set[int] = set()
        columns = stream(
            self.model,
            rows,
            replace(sampling, max_new_tokens=max(limits)),
            sources=sources,
            stop_ids={self.eos_id},
            forbidden=self.forbidden,
            finished_rows=finished_rows,
        )
        for column in columns:
            for number, token in enumerate(column):
                if token is not None:
                    row_tokens[number].append(token)
                    if len(row_tokens[number]) == limits[number]:
                        finished_rows.add(number)
        return [[_to_hypothesis(tokens)] for tokens in row_tokens]

    def _text(self, prefix: str, row: Sequence[int], hypothesis: Hypothesis) -> str:
        ids = hypothesis.ids[:-1] if hypothesis.finish == "eos" else hypothesis.ids
        prefix_text = self.tokenizer.decode(row[1:])  # the prefix after encoding and decoding
        return prefix + self.tokenizer.decode([*row[1:], *ids]).removeprefix(prefix_text)


def _to_hypothesis(tokens: Sequence[Token]) -> Hypothesis:
    logprob = sum(token.logprob for token in tokens)
    return Hypothesis(
        ids=tuple(token.id for token in tokens),
        logprob=logprob,
        logprobs=tuple(token.logprob for token in tokens),
        score=BEAM.score(logprob, len(tokens)) if tokens else 0.0,
        finish="eos" if tokens and tokens[-1].finish == "eos" else "length",
    )


def _empty_translation(prefix: str) -> Translation:
    return Translation(
        source="", text=prefix, ids=(), logprobs=(), logprob=0.0, score=0.0, finish="eos", truncated=False
    )


def _require_id(token: int | None, side: str, role: str) -> int:
    if token is None:
        raise UserError(f"the {side} tokenizer has no {role} token; train a tokenizer for translation")
    return token
