"""`Run`: a trained model in Python, with verbs of the command line as methods."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

import torch

from tercet.evaluate.run_evaluation import RunEvaluation
from tercet.generation import Beam, Completion, Draft, Lookup, Sampling, Translation, translate_lines
from tercet.generation.specs import BeamOptions, SamplingOptions, TranslationOptions
from tercet.models import Edit
from tercet.nn.linear import WeightDtype, quantize
from tercet.plots.run_view import RunView
from tercet.run_encoding import RunEncoding
from tercet.serve.serve_options import ServeOptions

if TYPE_CHECKING:
    from tercet.generation import ChatModel
    from tercet.inspect import Recording

ROWS = 64  # maximum samples per batch; results do not depend on batch composition


class CompletionOptions(SamplingOptions, total=False):
    """Keyword arguments of `Run.generate`: those of `Run.completions` except `samples`."""

    draft: "Run | None"
    lookup: bool | int
    draft_tokens: int | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(RunView, RunEvaluation, RunEncoding):
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
