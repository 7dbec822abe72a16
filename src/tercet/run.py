"""A trained model from Python: what the command line's verbs do, as methods."""

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

ROWS = 64  # texts that are written at once; what one becomes does not depend on the others


class TranslationOptions(BeamOptions, total=False):
    """The keywords of `Run.translations`."""

    search: Beam | Sampling | None
    prefixes: Sequence[str] | None
    batch_tokens: int


class CompletionOptions(SamplingOptions, total=False):
    """The keywords of `Run.completions`, but for `samples`."""

    draft: "Run | None"
    lookup: bool | int
    draft_tokens: int | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(RunView):
    """A trained model with its tokenizer, and the folder that it came from."""

    def to(self, device: str | torch.device) -> "Run":
        """The same run, its model moved to `device`."""
        self.model.to(device)
        return self

    def quantize(self, narrow: WeightDtype) -> "Run":
        """The same run, its weights in fewer bits from now on; see `tercet.nn.quantize`."""
        quantize(self.model, narrow)
        return self

    @overload
    def generate(self, prompts: str = "", **options: Unpack[CompletionOptions]) -> str: ...

    @overload
    def generate(self, prompts: list[str], **options: Unpack[CompletionOptions]) -> list[str]: ...

    def generate(self, prompts: str | list[str] = "", **options: Unpack[CompletionOptions]) -> str | list[str]:
        """What a language model writes after a prompt, or after each in a list; keywords as of `completions`."""
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
        """For each prompt what a language model writes after it, with the probability of each token and why it ended.

        Args:
            samples: so many texts for each prompt, with seeds one apart.
            draft: a smaller model with the same tokenizer that guesses tokens; this one reads them at once, and keeps
                those that leave its own distribution as it is.
            lookup: guess what followed the last tokens, so many, when they last stood in the text; True for 3.
            draft_tokens: how many to guess at most.
            sampling: the settings of `Sampling`.

        Raises:
            UserError: for a draft with another tokenizer.
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
        """The text of `generate`, piece by piece as it is written; the keywords are those of `completions`."""
        from tercet.generation import stream_text

        speculation = self._guesses(draft, lookup, draft_tokens)
        model = self.trained_model.require("generate").model
        return stream_text(model, self.tokenizer, prompt, Sampling(**sampling), speculation=speculation)

    def chat(self, messages: str | Sequence[Mapping[str, str]], **sampling: Unpack[SamplingOptions]) -> str:
        """What a chat model answers to the last message; the keywords are the settings of `Sampling`.

        Args:
            messages: {"role": ..., "content": ...} each, of "system", "user" and "assistant"; or the user's first.
        """
        return "".join(self.stream_chat(messages, **sampling))

    def stream_chat(
        self, messages: str | Sequence[Mapping[str, str]], **sampling: Unpack[SamplingOptions]
    ) -> Iterator[str]:
        """The text of `chat`, piece by piece as it is written."""
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
        """The best translation of a text, or of each in a list, line by line; keywords as of `translations`."""
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
        """For each text its translations, best first, with their scores and tokens.

        Args:
            search: how to look for them; or, in its place, keywords of `Beam`, such as size=1 or n_best=5.
            prefixes: for each text how its translation begins.
            batch_tokens: source tokens at once, counted for each hypothesis.
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
        """What may stand where a text has [MASK], or each in a list: for each mask the likeliest tokens.

        Args:
            top: so many at most; 5 by default, or all the words of `only`.
            only: these words in place of the vocabulary.
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
        """The vector of a text (D,), or of each in a list (N, D).

        Args:
            pooling: mean of all tokens, or the first one, bos; as the folder says by default, else the mean.
            normalise: to length 1.
            batch_tokens: the most tokens of a batch, padding included.
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
        """The texts nearest to each query, exactly, by the cosine of their vectors.

        Args:
            queries: one, or several; the result's arrays are (K,) or (Q, K).
            texts: to look among, or their vectors (N, D) as `embed` makes them.
            top: how many, K; fewer where there are fewer texts.
            pooling: as for `embed`: that which the vectors were made with.
            batch_tokens: the most tokens of a batch, padding included.

        Raises:
            UserError: where the vectors are not of this model's width, or a text cannot be encoded.
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
        """The label of a text, or of each in a list, with its probability; for labels of words there is `tag`, for
        several labels of a text `classify_multi_label`, and for numbers `regress`."""
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
        """The labels of a text, or of each in a list: those with a probability above `threshold`."""
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
        """The number of a text, or of each in a list, in the unit of those that were learnt from."""
        from tercet.encoding import regress

        all_texts = [texts] if isinstance(texts, str) else texts
        results = regress(self.trained_model.require("classify").require_labels("texts"), self.tokenizer, all_texts)
        return results[0] if isinstance(texts, str) else results

    def tag(self, sentences: Sequence[Sequence[str]]) -> "list[Tagging]":
        """The label of each word in each list of words, with its probability."""
        from tercet.encoding import tag

        return tag(self.trained_model.require("classify").require_labels("tokens"), self.tokenizer, sentences)

    def evaluate(self, data: str | Path | None = None, **settings: "Unpack[EvaluationOptions]") -> "Scores":
        """How good the model is on text that it has not seen.

        A language model: on the validation part of the training's data, or on the whole of `data`; settings as in
        `score`. A translator: on its dataset's test part, else its validation part, or on other pairs; settings as in
        `TranslationEvaluation`. A masked language model: as a language model; settings as in `score_masked`. A
        classifier: on the validation part of its results texts, or on the whole file `data`; settings as in
        `score_labels`. A chat model: likewise of its conversations; settings as in `score_conversations`.
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
        """One text through the model, and every tensor on the way.

        Args:
            target: what a translator's decoder reads; what the model itself would write by default.
            ids, target_ids: exactly these tokens in place of `text` and `target`, special ones included.
            edits: changes to tensors on the way, such as a head switched off.
            only: patterns of the names to note.
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
        """A page that shows what happens inside: served until it is stopped, or written to the file `export`.

        Args:
            prompt: the text to open with; a line of the validation part by default.
            target: what a translator's decoder reads; what it writes itself by default.
            port: or the next free one; 0 takes any.
            open: open the page in the browser.

        Raises:
            UserError: where the text cannot be read, the page would be too large, or starlette and uvicorn are missing.
        """
        from tercet.explorer import explore

        explore(self.trained_model, prompt, target=target, export=export, host=host, port=port, browse=open)

    def report(self, out: str | Path | None = None, *, evaluate: bool = False) -> Path:
        """Write the training as one page that opens without a network, and return its path: `tercet.report`, which says
        what the arguments are, and takes runs that have saved no model yet."""
        from tercet.reports.write import write_report

        return write_report(self.trained_model.folder, out, evaluate=evaluate, trained_model=self.trained_model)

    def serve(self, *others: "Run", **options: Unpack[ServeOptions]) -> None:
        """Answer over HTTP with this model, and those beside it, until a signal ends it; each is called as its folder.

        Args:
            others: other models to serve at one address.
            options: host, port, limits, ... as in `tercet.serve.server.serve`.

        Raises:
            UserError: where two are called alike, it cannot be opened there, or a package is missing.
        """
        from tercet.serve.required_packages import require_packages

        require_packages()
        from tercet.serve.server import name_models, serve

        runs = (self, *others)
        names = name_models([run.folder.parent if run.folder.name in ("best", "last") else run.folder for run in runs])
        serve({name: run.trained_model for name, run in zip(names, runs, strict=True)}, **options)
