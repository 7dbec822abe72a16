"""A trained model in Python, with the verbs of the command line as methods."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

import numpy as np
import torch

from tercet.data.rows.batching import BATCH_TOKENS
from tercet.generation import Beam, Completion, Draft, Lookup, Sampling, Translation, translate_lines
from tercet.generation.specs import BeamOptions, SamplingOptions
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
        Regression,
        Tagging,
    )
    from tercet.evaluate import EvaluationOptions, Scores
    from tercet.generation import ChatModel
    from tercet.inspect import Recording

ROWS = 64  # samples per batch; results do not depend on batch composition


class TranslationOptions(BeamOptions, total=False):
    """Keywords of `Run.translations`."""

    search: Beam | Sampling | None
    prefixes: Sequence[str] | None
    batch_tokens: int


class CompletionOptions(SamplingOptions, total=False):
    """Keywords of `Run.completions`, except `samples`."""

    draft: "Run | None"
    lookup: bool | int
    draft_tokens: int | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(RunView):
    """A trained model with its tokenizer and folder."""

    def to(self, device: str | torch.device) -> "Run":
        """Move the model to `device` and return this run."""
        self.model.to(device)
        return self

    def quantize(self, narrow: WeightDtype) -> "Run":
        """Quantize the weights in place and return this run; see `tercet.nn.quantize`."""
        quantize(self.model, narrow)
        return self

    @overload
    def generate(self, prompts: str = "", **options: Unpack[CompletionOptions]) -> str: ...

    @overload
    def generate(self, prompts: list[str], **options: Unpack[CompletionOptions]) -> list[str]: ...

    def generate(self, prompts: str | list[str] = "", **options: Unpack[CompletionOptions]) -> str | list[str]:
        """Return the continuation of a prompt, or of each in a list; keywords as in `completions`."""
        texts = [samples[0].text for samples in self.completions(prompts, **options)]
        return texts[0] if isinstance(prompts, str) else texts

    def completions(
        self,
        prompts: str | Sequence[str],
        *,
        samples: int = 1,
        draft: "Run | None" = None,
        lookup: bool | int = False,
        draft_tokens: int | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> list[list[Completion]]:
        """Return the continuations of each prompt, with the probability of each token and the finish reason.

        Args:
            samples: Number of continuations per prompt; their seeds are consecutive.
            draft: Smaller model with the same tokenizer, which drafts tokens without changing the distribution.
            lookup: Number of last tokens to look up in the text, to draft those that followed; True means 3.
            draft_tokens: Maximum draft tokens per forward pass.

        Raises:
            UserError: If the draft model has another tokenizer.
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
        self,
        prompt: str = "",
        *,
        draft: "Run | None" = None,
        lookup: bool | int = False,
        draft_tokens: int | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Iterator[str]:
        """Yield the text of `generate` in pieces as it is generated; keywords as in `completions`."""
        from tercet.generation import stream_text

        speculation = self._guesses(draft, lookup, draft_tokens)
        model = self.trained_model.require("generate").model
        return stream_text(model, self.tokenizer, prompt, Sampling(**sampling), speculation=speculation)

    def chat(self, messages: str | Sequence[Mapping[str, str]], **sampling: Unpack[SamplingOptions]) -> str:
        """Return the answer of a chat model to the last message; keywords are the settings of `Sampling`.

        Args:
            messages: Dicts of "role" ("system", "user" or "assistant") and "content"; or the text of a user message.

        Raises:
            UserError: If there is no chat template, or the messages cannot be encoded or exceed the context.
        """
        return "".join(self.stream_chat(messages, **sampling))

    def stream_chat(
        self, messages: str | Sequence[Mapping[str, str]], **sampling: Unpack[SamplingOptions]
    ) -> Iterator[str]:
        """Yield the text of `chat` in pieces as it is generated."""
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
        """Return the translation of a text, or of each in a list, line by line; keywords as in `translations`."""
        all_texts = [texts] if isinstance(texts, str) else texts
        best = translate_lines(all_texts, lambda lines: self.translations(lines, **options))
        return best[0] if isinstance(texts, str) else best

    def translations(
        self,
        texts: str | Sequence[str],
        *,
        search: Beam | Sampling | None = None,
        prefixes: Sequence[str] | None = None,
        batch_tokens: int = 4096,
        **beam: Unpack[BeamOptions],
    ) -> list[list[Translation]]:
        """Return the translations of each text, best first, with scores and tokens.

        Args:
            search: The search; alternatively, keywords of `Beam` such as size=1 or n_best=5.
            prefixes: For each text, the beginning of its translation.
            batch_tokens: Maximum source tokens per batch, counted for each hypothesis.
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
            top: Maximum number of candidates per mask; 5 by default, or all words of `only`.
            only: Words to choose from instead of the vocabulary.
        """
        from tercet.encoding import fill

        all_texts = [texts] if isinstance(texts, str) else texts
        results = fill(self.trained_model.require("fill").model, self.tokenizer, all_texts, top=top, only=only)
        return results[0] if isinstance(texts, str) else results

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: Pooling | None = None,
        normalise: bool = True,
        batch_tokens: int = BATCH_TOKENS,
    ) -> np.ndarray:
        """Return the embedding of a text (D,), or of each text in a list (N, D).

        Args:
            pooling: "mean" of all tokens or "first" token (bos); by default that of the model folder, else the mean.
            normalise: If True, scale vectors to length 1.
            batch_tokens: Maximum tokens per batch, including padding.
        """
        from tercet.encoding import embed

        encoder, all_texts = self.trained_model.require("embed"), [texts] if isinstance(texts, str) else texts
        vectors = embed(
            encoder.model, self.tokenizer, all_texts, pooling=pooling or encoder.sentence.pooling, normalise=normalise,
            max_len=encoder.text_len, batch_tokens=batch_tokens,
        ).vectors  # fmt: skip
        return vectors[0] if isinstance(texts, str) else vectors

    def search(
        self,
        queries: str | Sequence[str],
        texts: Sequence[str] | np.ndarray,
        *,
        top: int = 5,
        pooling: Pooling | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> "Neighbors":
        """Return numbers and cosines of the texts most similar to a query (K,), or to each in a list (Q, K).

        Args:
            texts: Texts to search, or their embeddings (N, D) from `embed`.
            top: Number of results, K, best first; fewer if there are fewer texts.
            pooling, batch_tokens: As in `embed`; pooling must be that of the embeddings.

        Raises:
            UserError: If the embeddings do not have the width of this model, or a text cannot be encoded.
        """
        from tercet.encoding import Neighbors, nearest

        query_texts = [queries] if isinstance(queries, str) else queries
        is_embedded = isinstance(texts, np.ndarray)
        vectors = texts if is_embedded else self.embed(texts, pooling=pooling, batch_tokens=batch_tokens)
        result = nearest(vectors, self.embed(query_texts, pooling=pooling, batch_tokens=batch_tokens), top=top)
        if isinstance(queries, str):
            return Neighbors(numbers=result.numbers[0], scores=result.scores[0])
        return result

    @overload
    def classify(self, texts: str) -> "Classification": ...

    @overload
    def classify(self, texts: list[str]) -> "list[Classification]": ...

    def classify(self, texts: str | list[str]) -> "Classification | list[Classification]":
        """Return the label of a text, or of each in a list; see also `tag`, `classify_multi_label`, `regress`."""
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
        """Return the number predicted for a text, or for each in a list, in the unit of the training labels."""
        from tercet.encoding import regress

        all_texts = [texts] if isinstance(texts, str) else texts
        results = regress(self.trained_model.require("classify").require_labels("texts"), self.tokenizer, all_texts)
        return results[0] if isinstance(texts, str) else results

    def tag(self, sentences: Sequence[Sequence[str]]) -> "list[Tagging]":
        """Return the label of each word in each list of words, with its probability."""
        from tercet.encoding import tag

        return tag(self.trained_model.require("classify").require_labels("tokens"), self.tokenizer, sentences)

    def evaluate(self, data: str | Path | None = None, **settings: "Unpack[EvaluationOptions]") -> "Scores":
        """Evaluate the model on held-out data, or on `data` (for a translator, on `source` and `target`).

        Held-out data is the validation part of the training data, for translators the test part if there is one. The
        settings are those of `score`, `score_masked`, `score_labels`, `score_conversations`, `TranslationEvaluation`.
        """
        from tercet.evaluate import evaluation_of

        return evaluation_of(self.trained_model).evaluate(data, **settings)

    def read(
        self,
        text: str = "",
        *,
        target: str | None = None,
        ids: Sequence[int] | None = None,
        target_ids: Sequence[int] | None = None,
        edits: Sequence[Edit] = (),
        only: Sequence[str] = ("*",),
    ) -> "Recording":
        """Run the model on one text and record its tensors.

        Args:
            target: Decoder input of a translator; by default its own translation.
            ids, target_ids: Exact tokens instead of `text` and `target`, including special tokens.
            edits: Changes to tensors, such as a head that is switched off.
            only: Patterns of the names to record.
        """
        from tercet.inspect import read

        return read(self.trained_model, text, target=target, ids=ids, target_ids=target_ids, edits=edits, only=only)

    def explore(
        self,
        prompt: str | None = None,
        *,
        target: str | None = None,
        export: str | Path | None = None,
        host: str = "127.0.0.1",
        port: int = 8765,
        open: bool = False,  # the name of the command line's flag
    ) -> None:
        """Show the inside of the model on a page, served until it is stopped, or written to the file `export`.

        Args:
            prompt, target: Initial text and its translation; by default a validation line and the model's translation.
            port: Port, or the next free one; 0 means any free port.

        Raises:
            UserError: If the text cannot be read, the page would be too large, or starlette and uvicorn are missing.
        """
        from tercet.explorer import explore

        explore(self.trained_model, prompt, target=target, export=export, host=host, port=port, browse=open)

    def report(self, out: str | Path | None = None, *, evaluate: bool = False) -> Path:
        """Write the report of the training as one HTML file that opens offline; see `tercet.report`."""
        from tercet.reports.write import write_report

        return write_report(self.trained_model.folder, out, evaluate=evaluate, trained_model=self.trained_model)

    def serve(self, *others: "Run", **options: Unpack[ServeOptions]) -> None:
        """Serve this and other models, named after their folders, over HTTP until a signal stops the server.

        Args:
            options: Those of `tercet.serve.server.serve`.

        Raises:
            UserError: If two models have the same name, the address cannot be opened, or a package is missing.
        """
        from tercet.serve.required_packages import require_packages

        require_packages()
        from tercet.serve.server import name_models, serve

        runs = (self, *others)
        names = name_models([run.folder.parent if run.folder.name in ("best", "last") else run.folder for run in runs])
        serve({name: run.trained_model for name, run in zip(names, runs, strict=True)}, **options)
