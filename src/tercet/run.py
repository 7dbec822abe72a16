"""`Run`: a trained model in Python, with verbs of the command line as methods."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

import numpy as np
import torch

from tercet.data.rows.batching import BATCH_TOKENS
from tercet.evaluate.run_evaluation import RunEvaluation
from tercet.generation import Beam, Completion, Draft, Lookup, Sampling, Translation, translate_lines
from tercet.generation.specs import BeamOptions, SamplingOptions, TranslationOptions
from tercet.models import Edit
from tercet.nn.linear import WeightDtype, quantize
from tercet.nn.specs import Pooling
from tercet.plots.run_view import RunView
from tercet.serve.serve_options import ServeOptions

if TYPE_CHECKING:
    from tercet.encoding import (
        Classification,
        MaskPredictions,
        MultiLabelClassification,
        Neighbors,
        RankedDocument,
        Regression,
        Tagging,
    )
    from tercet.generation import ChatModel
    from tercet.inspect import Recording

ROWS = 64  # maximum samples per batch; results do not depend on batch composition


class CompletionOptions(SamplingOptions, total=False):
    """Keyword arguments of `Run.generate`: those of `Run.completions` except `samples`."""

    draft: "Run | None"
    lookup: bool | int
    draft_tokens: int | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(RunView, RunEvaluation):
    """A trained model with its tokenizer and folder; methods that it does not support raise UserError."""

    def to(self, device: str | torch.device) -> "Run":
        """Move the model to `device` and return this run."""
        self.model.to(device)
        return self

    def quantize(self, narrow: WeightDtype) -> "Run":
        """Quantize all layers of type `tercet.nn.Linear` in place and return this run; see `tercet.nn.quantize`."""
        quantize(self.model, narrow)
        return self

    @overload
    def generate(self, prompts: str = "", **options: Unpack[CompletionOptions]) -> str: ...

    @overload
    def generate(self, prompts: list[str], **options: Unpack[CompletionOptions]) -> list[str]: ...

    def generate(self, prompts: str | list[str] = "", **options: Unpack[CompletionOptions]) -> str | list[str]:
        """Return the continuation of a prompt, or of each in a list; options as in `completions`, without `samples`."""
        texts = [samples[0].text for samples in self.completions(prompts, **options)]
        return texts[0] if isinstance(prompts, str) else texts

    def completions(
        self, prompts: str | Sequence[str], *, samples: int = 1, draft: "Run | None" = None, lookup: bool | int = False,
        draft_tokens: int | None = None, **sampling: Unpack[SamplingOptions],
    ) -> list[list[Completion]]:  # fmt: skip
        """Return the continuations of each prompt, with the log-probability of each token and the finish reason.

        Args:
            prompts: A prompt, or several.
            samples: Number of continuations per prompt; their seeds are consecutive.
            draft: Smaller model with the same tokenizer that drafts tokens without changing the distribution.
            lookup: Number N of tokens for prompt lookup, an alternative to `draft`: draft the tokens that followed the
                last occurrence of the last N tokens. True means 3.
            draft_tokens: Maximum draft tokens per forward pass (default: 4 with `draft`, 10 with `lookup`).
            sampling: Settings of `tercet.generation.Sampling`, such as temperature=0.8 or json_schema={...}.

        Raises:
            UserError: If a prompt, JSON schema or regex cannot be used, or the draft model has another tokenizer.
            ValueError: If a setting is out of range, or `draft`, `lookup` and `draft_tokens` do not fit together.
        """
        from tercet.generation import generate

        speculation = self._guesses(draft, lookup, draft_tokens)
        model, settings = self.trained_model.require("generate").model, Sampling(**sampling)
        all_prompts = [prompts] if isinstance(prompts, str) else prompts
        results = list[Completion]()
        for first in range(0, len(all_prompts), prompts_per_batch := max(1, ROWS // max(1, samples))):
            batch = all_prompts[first : first + prompts_per_batch]
            results += generate(model, self.tokenizer, batch, settings, samples=samples, speculation=speculation)
        return [results[n * samples : (n + 1) * samples] for n in range(len(all_prompts))]

    def stream(
        self, prompt: str = "", *, draft: "Run | None" = None, lookup: bool | int = False,
        draft_tokens: int | None = None, **sampling: Unpack[SamplingOptions],
    ) -> Iterator[str]:  # fmt: skip
        """Yield the text of `generate` for one prompt in pieces as they are generated; options as in `completions`."""
        from tercet.generation import stream_text

        speculation = self._guesses(draft, lookup, draft_tokens)
        model = self.trained_model.require("generate").model
        return stream_text(model, self.tokenizer, prompt, Sampling(**sampling), speculation=speculation)

    def chat(self, messages: str | Sequence[Mapping[str, str]], **sampling: Unpack[SamplingOptions]) -> str:
        """Return the answer of a chat model to the last message.

        If the conversation leaves too little context for an answer, its oldest turns are dropped.

        Args:
            messages: Dicts of "role" ("system", "user" or "assistant") and "content"; or the text of a user message.
            sampling: Settings of `tercet.generation.Sampling`; max_new_tokens is by default what fits in the context.

        Raises:
            UserError: If there is no chat template, or the messages cannot be encoded, or the last one is too long.
        """
        return "".join(self.stream_chat(messages, **sampling))

    def stream_chat(
        self, messages: str | Sequence[Mapping[str, str]], **sampling: Unpack[SamplingOptions]
    ) -> Iterator[str]:
        """Yield the answer of `chat` in pieces as they are generated."""
        conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return iter(self._chat_model.ask(conversation, sampling)[1])

    @cached_property
    def _chat_model(self) -> "ChatModel":
        from tercet.generation import ChatModel
        from tercet.tokens.chat_template import ChatTemplate

        trained_model, tokenizer = self.trained_model.require("generate"), self.tokenizer
        return ChatModel(trained_model.model, tokenizer, ChatTemplate(trained_model.require_chat_template(), tokenizer))

    def _guesses(self, draft: "Run | None", lookup: bool | int, draft_tokens: int | None) -> Draft | Lookup | None:
        from tercet.generation import choose_speculation

        draft_model = None if draft is None else (draft.trained_model.require("generate").model, draft.tokenizer)
        return choose_speculation(self.tokenizer, draft_model, lookup, draft_tokens)

    @overload
    def translate(self, texts: str, **options: Unpack[TranslationOptions]) -> str: ...

    @overload
    def translate(self, texts: list[str], **options: Unpack[TranslationOptions]) -> list[str]: ...

    def translate(self, texts: str | list[str], **options: Unpack[TranslationOptions]) -> str | list[str]:
        """Return the best translation of a text, or of each in a list; options as in `translations`.

        The lines of a text are translated separately, and `prefixes` has one entry per line.
        """
        all_texts = [texts] if isinstance(texts, str) else texts
        best = translate_lines(all_texts, lambda lines: self.translations(lines, **options))
        return best[0] if isinstance(texts, str) else best

    def translations(
        self, texts: str | Sequence[str], *, search: Beam | Sampling | None = None,
        prefixes: Sequence[str] | None = None, batch_tokens: int = 4096, **beam: Unpack[BeamOptions],
    ) -> list[list[Translation]]:  # fmt: skip
        """Return the translations of each text, best first, with scores and tokens.

        Args:
            texts: A text, or several. Each is translated as one sentence.
            search: Search settings (default: a beam of 5).
            prefixes: Beginning of the translation of each text.
            batch_tokens: Maximum source tokens per batch, including padding, counted once per hypothesis of the beam.
            beam: Settings of `tercet.generation.Beam` instead of `search`, such as size=1 or n_best=5.

        Raises:
            UserError: If a text cannot be encoded.
            ValueError: If arguments are out of range or do not fit together.
        """
        from tercet.generation import translate

        if search is not None and beam:
            raise ValueError(f"{', '.join(beam)} and search={search} exclude each other; pass one of them")
        return translate(
            self.trained_model.require("translate").model, self.tokenizer, [texts] if isinstance(texts, str) else texts,
            Beam(**beam) if search is None else search, source_tokenizer=self.trained_model.source_tokenizer,
            prefixes=prefixes, batch_tokens=batch_tokens,
        )  # fmt: skip

    @overload
    def fill(self, texts: str, top: int | None = None, only: Sequence[str] | None = None) -> "MaskPredictions": ...

    @overload
    def fill(
        self, texts: list[str], top: int | None = None, only: Sequence[str] | None = None
    ) -> "list[MaskPredictions]": ...

    def fill(
        self, texts: str | list[str], top: int | None = None, only: Sequence[str] | None = None
    ) -> "MaskPredictions | list[MaskPredictions]":
        """Return the most likely tokens for each [MASK] of a text, or of each text in a list.

        Args:
            texts: A text with masks, or a list of such texts.
            top: Maximum number of candidates per mask (default: 5, or all words of `only`).
            only: Words to choose from instead of the whole vocabulary.

        Raises:
            UserError: If a text has no mask, a mask is beyond the context, or a word of `only` is unknown.
            ValueError: If `top` is below 1, or `only` is empty.
        """
        from tercet.encoding import fill

        all_texts = [texts] if isinstance(texts, str) else texts
        results = fill(self.trained_model.require("fill").model, self.tokenizer, all_texts, top=top, only=only)
        return results[0] if isinstance(texts, str) else results

    def embed(
        self, texts: str | Sequence[str], *, pooling: Pooling | None = None, normalize: bool = True,
        size: int | None = None, batch_tokens: int = BATCH_TOKENS,
    ) -> np.ndarray:  # fmt: skip
        """Return the embedding of a text (D,), or of each text in a list (N, D), in float32.

        Args:
            texts: A text, or several. Texts that exceed the context are truncated.
            pooling: "mean", "first" or "max" of the token vectors (default: as the folder defines, or "mean").
            normalize, size: If True, scale vectors to length 1, after cutting them to `size` elements (`task.sizes`).
            batch_tokens: Maximum tokens per batch, including padding.
        """
        from tercet.encoding.embed import check_size, embed, vector_width

        encoder, all_texts = self.trained_model.require("embed"), [texts] if isinstance(texts, str) else texts
        check_size(size, encoder.sentence.sizes, vector_width(encoder.model, encoder.projection))
        vectors = embed(
            encoder.model, self.tokenizer, all_texts, pooling=pooling or encoder.sentence.pooling, normalize=normalize,
            projection=encoder.projection, size=size, max_len=encoder.text_len, batch_tokens=batch_tokens,
        ).vectors  # fmt: skip
        return vectors[0] if isinstance(texts, str) else vectors

    def search(
        self, queries: str | Sequence[str], texts: Sequence[str] | np.ndarray, *, top: int = 5,
        pooling: Pooling | None = None, batch_tokens: int = BATCH_TOKENS,
    ) -> "Neighbors":  # fmt: skip
        """Return the texts most similar to a query, by cosine similarity.

        Args:
            queries: A query, or several.
            texts: Texts to search, or their embeddings (N, D) from `embed`, also of a smaller size.
            top: Maximum number of results per query.
            pooling, batch_tokens: As in `embed`. If `texts` are embeddings, pass the pooling that they were made with.

        Returns:
            Numbers of the texts, from 0, and their cosines, most similar first: (K,), or (Q, K) for a list of queries.

        Raises:
            UserError: If the embeddings do not have the width of this model, or a text cannot be encoded.
        """
        from tercet.encoding import Neighbors, nearest

        embed = partial(self.embed, pooling=pooling, batch_tokens=batch_tokens)
        vectors = texts if isinstance(texts, np.ndarray) else embed(texts)
        size = next((n for n in self.trained_model.require("embed").sentence.sizes if n == vectors.shape[-1]), None)
        result = nearest(vectors, embed([queries] if isinstance(queries, str) else queries, size=size), top=top)
        is_single = isinstance(queries, str)
        return Neighbors(numbers=result.numbers[0], scores=result.scores[0]) if is_single else result

    @overload
    def classify(self, texts: str) -> "Classification": ...

    @overload
    def classify(self, texts: list[str]) -> "list[Classification]": ...

    def classify(self, texts: str | list[str]) -> "Classification | list[Classification]":
        """Return the label of a text, or of each in a list; see also `tag`, `classify_multi_label` and `regress`."""
        from tercet.encoding import classify

        all_texts = [texts] if isinstance(texts, str) else texts
        results = classify(self.trained_model.require("classify").require_labels("texts"), self.tokenizer, all_texts)
        return results[0] if isinstance(texts, str) else results

    @overload
    def classify_multi_label(self, texts: str, *, threshold: float = 0.5) -> "MultiLabelClassification": ...

    @overload
    def classify_multi_label(self, texts: list[str], *, threshold: float = 0.5) -> "list[MultiLabelClassification]": ...

    def classify_multi_label(
        self, texts: str | list[str], *, threshold: float = 0.5
    ) -> "MultiLabelClassification | list[MultiLabelClassification]":
        """Return the labels of a text, or of each text in a list, whose probability is above `threshold`."""
        from tercet.encoding import classify_multi_label

        all_texts = [texts] if isinstance(texts, str) else texts
        model = self.trained_model.require("classify").require_labels("texts")
        results = classify_multi_label(model, self.tokenizer, all_texts, threshold=threshold)
        return results[0] if isinstance(texts, str) else results

    @overload
    def regress(self, texts: str) -> "Regression": ...

    @overload
    def regress(self, texts: list[str]) -> "list[Regression]": ...

    def regress(self, texts: str | list[str]) -> "Regression | list[Regression]":
        """Return the predicted number of a text, or of each text in a list, in the unit of the training labels."""
        from tercet.encoding import regress

        all_texts = [texts] if isinstance(texts, str) else texts
        results = regress(self.trained_model.require("classify").require_labels("texts"), self.tokenizer, all_texts)
        return results[0] if isinstance(texts, str) else results

    def tag(self, sentences: Sequence[Sequence[str]]) -> "list[Tagging]":
        """Return the label of each word and its probability, for sentences that are lists of words."""
        from tercet.encoding import tag

        return tag(self.trained_model.require("classify").require_labels("tokens"), self.tokenizer, sentences)

    def rerank(self, query: str, documents: Sequence[str]) -> "list[RankedDocument]":
        """Return the documents with their relevance to the query, the most relevant first."""
        from tercet.encoding import rerank

        return rerank(self.trained_model.require("classify").model, self.tokenizer, query, documents)

    def read(
        self, text: str = "", *, target: str | None = None, ids: Sequence[int] | None = None,
        target_ids: Sequence[int] | None = None, edits: Sequence[Edit] = (), only: Sequence[str] = ("*",),
    ) -> "Recording":  # fmt: skip
        """Run the model on one text and record its tensors.

        Args:
            text: Input; for a translator, the source.
            target: Text that the decoder of a translator reads (default: the model's own translation).
            ids, target_ids: Token ids instead of `text` and `target`, including special tokens.
            edits: Changes to tensors during the forward pass, such as setting the output of a head to zero.
            only: Names of the tensors to record, with wildcards such as "*"; by default all.
        """
        from tercet.inspect import read

        return read(self.trained_model, text, target=target, ids=ids, target_ids=target_ids, edits=edits, only=only)

    def explore(
        self, prompt: str | None = None, *, target: str | None = None, export: str | Path | None = None,
        host: str = "127.0.0.1", port: int = 8765, open: bool = False,  # `open` is also the command line's flag
    ) -> None:  # fmt: skip
        """Serve a page that shows the inside of the model until a signal stops it, or write the page to a file.

        Args:
            prompt: Initial text (default: a line of the validation data).
            target: For a translator, the translation of the initial text (default: the model's own translation).
            export: HTML file to write the page to instead of serving it.
            host: Address to listen on. 127.0.0.1 can be reached only from this machine.
            port: Port; if it is in use, the next free one is used. 0 means any free port.
            open: If True, open the page in the browser.

        Raises:
            UserError: If the text is invalid, the page cannot be written or served, or a package is missing.
        """
        from tercet.explorer import explore

        explore(self.trained_model, prompt, target=target, export=export, host=host, port=port, browse=open)

    def report(self, out: str | Path | None = None, *, evaluate: bool = False) -> Path:
        """Write the report of the training as one HTML file, and return its path; arguments as in `tercet.report`."""
        from tercet.reports.write import write_report

        return write_report(self.trained_model.folder, out, evaluate=evaluate, trained_model=self.trained_model)

    def serve(self, *others: "Run", **options: Unpack[ServeOptions]) -> None:
        """Serve this and other models, named after their folders, over HTTP until a signal stops the server.

        Args:
            options: Keyword arguments of `tercet.serve.server.serve`, such as port=8000.

        Raises:
            UserError: If two models have the same name, the address cannot be opened, or a package is missing.
        """
        from tercet.serve.required_packages import require_packages

        require_packages()
        from tercet.serve.server import name_models, serve

        runs = (self, *others)
        names = name_models([run.folder.parent if run.folder.name in ("best", "last") else run.folder for run in runs])
        serve({name: run.trained_model for name, run in zip(names, runs, strict=True)}, **options)
