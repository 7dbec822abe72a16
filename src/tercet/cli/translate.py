"""`tercet translate`: translate lines; translations are printed in the order of the input while it is read."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, repeat, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.cli.decoding import add_beam, add_sampling, add_search, describe_search, parse_search
from tercet.cli.device import add_device, add_quantize, place_model, select_device
from tercet.cli.lines import open_lines, replace_line_ends
from tercet.cli.parser import Verbs, out_path, parse_number
from tercet.cli.texts import add_batches, add_input, read_texts
from tercet.data.rows.pools import POOL, take_pool
from tercet.messages import counted, one_line, print_note
from tercet.spec import PoolLines

if TYPE_CHECKING:
    from tercet.checkpoint import Translator
    from tercet.generation import Beam, Sampling, SourceDecoder, Translation
    from tercet.inspect.cross_attention import CrossAttentionMap
    from tercet.models import EncoderDecoder


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "translate",
        words_among_flags=True,
        help=summary,
        description="Translate a text, stdin or a file line by line. The output has one line per line of the input, or "
        "up to N lines with --n-best N. Several runs are combined as an ensemble.",
        epilog="Examples: tercet translate runs/numbers twenty-seven; tercet translate runs/mine < in.de > out.en",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run or model, or hf://user/name")
    parser.add_argument(
        "more",
        metavar="RUN|TEXT",
        nargs="*",
        default=[],
        help="further runs of an ensemble; the last argument may be a text to translate instead of stdin",
    )
    add_input(parser.add_argument)
    search = parser.add_argument_group("search")
    add_beam(search.add_argument)
    add_search(search.add_argument)
    search.add_argument(
        "--prefix", metavar="FILE", type=Path, help="file with the beginning of each translation, line by line"
    )
    search.add_argument("--prefix-text", metavar="TEXT", help="beginning of every translation")
    search.add_argument(
        "--combine",
        choices=("linear", "log_linear"),
        help="mean over the models of an ensemble: of probabilities (linear) or of log-probabilities (log_linear) "
        "(default: linear)",
    )
    add_sampling(parser.add_argument_group("sampling").add_argument)
    output = parser.add_argument_group("output")
    output.add_argument("--scores", action="store_true", help="print a tab and the score after each translation")
    output.add_argument(
        "--alignment",
        action="store_true",
        help="print a tab and the word alignment after each translation, such as 0-0 1-2 (source-target, from 0)",
    )
    output.add_argument(
        "--attention",
        metavar="FILE",
        type=out_path,
        help="file to write a plot of the cross-attention to: .png, .svg or .pdf",
    )
    output.add_argument(
        "--json", action="store_true", help="print one JSON object per translation: source, text, score, ..."
    )
    output.add_argument("--quiet", action="store_true", help="print no notes and no summary to stderr")
    add_batches(parser.add_argument)
    parser.add_argument(
        "--pool",
        metavar="N",
        type=parse_number(PoolLines),
        help=f"lines to read ahead and sort by length (default: {POOL}; 1 if they are typed on a terminal)",
    )
    add_quantize(parser.add_argument)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    search = parse_search(args)
    args.runs, args.text = _runs_and_text(args)
    _check(args)
    if args.attention is not None:
        from tercet.plots.cross_attention import FLAG
        from tercet.plots.picture_file import check_picture

        check_picture(args.attention, FLAG)
    with ExitStack() as files:
        lines = _read_lines(args, files)
        writer = _Writer.load(args, search)
        maps = list["CrossAttentionMap"]()
        for translations in writer.translate(_limit_sentences(lines) if args.attention is not None else lines):
            for rank, (translation, attention) in enumerate(translations):
                print(writer.format_line(translation, attention, rank))
                if attention is not None and rank == 0:
                    maps.append(attention)
    if args.attention is not None:
        from tercet.plots.cross_attention import draw_cross_attention

        draw_cross_attention(maps, args.attention)
    if not args.quiet:
        print_note(f"tercet: {writer.summary()}")
    return 0


def _runs_and_text(args: argparse.Namespace) -> tuple[list[str], str | None]:
    """Return the runs, and the text to translate, or None.

    With several arguments, the last one is the text unless it is an existing path, or contains a slash and no space.
    """
    words = [args.run, *args.more]
    last = words[-1]
    has_space = any(character.isspace() for character in last)
    if not args.more or os.path.exists(last) or ("/" in last and not has_space):
        return words, None
    if last != "-" and not has_space and not args.quiet:
        print_note(f"tercet: no folder is named {one_line(last)}; translating it as text")
    return words[:-1], last


def _check(args: argparse.Namespace) -> None:
    from tercet.config import UserError

    if args.combine is not None and len(args.runs) == 1:
        raise UserError("--combine requires several runs; pass more runs, or leave it out")
    if args.prefix is not None and args.prefix_text is not None:
        raise UserError("--prefix and --prefix-text exclude each other; pass one of them")


def _read_lines(args: argparse.Namespace, files: ExitStack) -> Iterator[tuple[str, str]]:
    """Return the lines to translate, each with the required beginning of its translation ("" if there is none).

    Files are opened by this call, not when the iterator is read, so that missing files are reported early.

    Raises:
        UserError: If a file cannot be read. The iterator raises it if --prefix has more or fewer lines than the input.
    """
    lines = (text.text for text in read_texts(args, files))
    if args.text not in (None, "-"):
        from tercet.generation import source_lines

        lines = iter(source_lines(args.text))
    if args.prefix is not None:
        return _side_by_side(lines, open_lines(args.prefix, "--prefix", files), args.prefix)
    return zip(lines, repeat(args.prefix_text or ""))


def _side_by_side(lines: Iterator[str], prefixes: Iterator[str], path: Path) -> Iterator[tuple[str, str]]:
    from tercet.config import UserError

    for number, (line, prefix) in enumerate(zip_longest(lines, prefixes)):
        if line is None:
            raise UserError(
                f"--prefix {path} has more lines than the input, which has {number:,}; it needs one per input line"
            )
        if prefix is None:
            raise UserError(f"--prefix {path} has {number:,} lines, fewer than the input; it needs one per input line")
        yield line, prefix


def _limit_sentences(lines: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the lines after all have been read.

    Raises:
        UserError: If there are more lines than --attention can plot.
    """
    from tercet.config import UserError
    from tercet.plots.cross_attention import MAX_SENTENCES

    sentences = list(islice(lines, MAX_SENTENCES + 1))
    if len(sentences) > MAX_SENTENCES:
        raise UserError(f"--attention plots at most {MAX_SENTENCES} sentences; pass fewer")
    yield from sentences


@dataclass
class _Writer:
    """Translates lines and formats the output.

    Attributes:
        args: Parsed command line.
        search: Search settings.
        translators: Translators, which form an ensemble if there are several.
        lines: Number of lines that were translated.
        cut: Number of lines that were truncated to the context.
        unfinished: Number of lines whose best translation was stopped by the length limit.
        seconds: Time that the translation took.
    """

    args: argparse.Namespace
    search: "Beam | Sampling"
    translators: "list[Translator]"
    lines: int = 0
    cut: int = 0
    unfinished: int = 0
    seconds: float = 0.0

    @classmethod
    def load(cls, args: argparse.Namespace, search: "Beam | Sampling") -> "_Writer":
        """Load the runs `args.runs`.

        Raises:
            UserError: If a run cannot be loaded, is not a translator, or its vocabulary differs from that of the first.
        """
        device = select_device(args.device, models=args.runs)

        from tercet.checkpoint import load_model, tokenizer_hash
        from tercet.config import UserError

        trained_models = [load_model(run) for run in args.runs]
        translators = [trained_model.require("translate") for trained_model in trained_models]
        for translator in translators:
            place_model(translator.model, device, args.quantize)
        hashes = [tokenizer_hash(translator.tokenizer, translator.source_tokenizer) for translator in translators]
        for run, vocabulary in zip(args.runs, hashes, strict=True):
            if vocabulary != hashes[0]:
                raise UserError(
                    f"{run} has a different vocabulary than {args.runs[0]}; an ensemble requires the same one"
                )
        return cls(args, search, translators)

    @property
    def models(self) -> "list[EncoderDecoder]":
        return [translator.model for translator in self.translators]

    @property
    def model(self) -> "SourceDecoder[Any]":
        from tercet.generation import Ensemble

        if len(self.models) == 1:
            return self.models[0]
        return Ensemble(self.models, self.args.combine or "linear")

    def translate(
        self, lines: Iterator[tuple[str, str]]
    ) -> "Iterator[list[tuple[Translation, CrossAttentionMap | None]]]":
        """Yield the translations of each line, each with its cross-attention if that is requested, else None.

        Raises:
            UserError: If a line or the beginning of its translation cannot be translated.
        """
        from tercet.config import UserError
        from tercet.generation import translate

        pool = self.args.pool or (1 if self.args.input is None and sys.stdin.isatty() else POOL)
        model, tokenizer, source_tokenizer = (
            self.model,
            self.translators[0].tokenizer,
            self.translators[0].source_tokenizer,
        )
        while batch := take_pool(lines, pool, lambda line: line[0]):
            began = time.perf_counter()
            texts, prefixes = [text for text, _ in batch], [prefix for _, prefix in batch]
            try:
                answers = translate(
                    model, tokenizer, texts, self.search, source_tokenizer=source_tokenizer, prefixes=prefixes,
                    batch_tokens=self.args.batch_tokens,
                )  # fmt: skip
            except ValueError as error:
                raise UserError(str(error)) from None
            for answer, prefix in zip(answers, prefixes, strict=True):
                self.lines += 1
                self.cut += answer[0].truncated
                self.unfinished += answer[0].finish == "length"
                yield [(translation, self._read_attention(translation, prefix)) for translation in answer]
            sys.stdout.flush()
            self.seconds += time.perf_counter() - began

    def _read_attention(self, translation: "Translation", prefix: str) -> "CrossAttentionMap | None":
        from tercet.inspect.cross_attention import read_cross_attention

        if not self.args.alignment and self.args.attention is None:
            return None
        first = self.translators[0]
        return read_cross_attention(
            self.models, first.tokenizer, translation, source_tokenizer=first.source_tokenizer, prefix=prefix
        )

    def format_line(self, translation: "Translation", attention: "CrossAttentionMap | None", rank: int) -> str:
        """Return the output line of a translation of the last line; `rank` is its number among these, from 0."""
        number, score = self.lines - 1, f"{translation.score:.4f}"
        alignment = attention.pharaoh if attention is not None and self.args.alignment else None
        if self.args.json:
            fields = {
                "input": number,
                **({"rank": rank} if self.args.n_best else {}),
                "source": translation.source,
                "text": translation.text,
                "score": translation.score,
                "logprob": translation.logprob,
                "tokens": len(translation.ids),
                "finish": translation.finish,
                "truncated": translation.truncated,
            }
            return json.dumps({**fields, **({} if alignment is None else {"alignment": alignment})}, ensure_ascii=False)
        text = replace_line_ends(translation.text)
        extra = [] if alignment is None else [alignment]
        if self.args.n_best:
            return " ||| ".join([str(number), text, score, *extra])
        return "\t".join([text, *([score] if self.args.scores else []), *extra])

    def summary(self) -> str:
        """Return a summary for stderr: search, number of lines and seconds, and truncated lines and translations."""
        max_len = min(model.max_len for model in self.models)
        facts = [describe_search(self.search), f"{counted(self.lines, 'line', 'lines')} in {self.seconds:.1f} s"]
        if len(self.models) > 1:
            facts.insert(0, f"{self.args.combine or 'linear'} ensemble of {len(self.models)}")
        if self.cut:
            facts.append(f"{counted(self.cut, 'source', 'sources')} cut to the context of {max_len} tokens")
        if self.unfinished:
            facts.append(f"{counted(self.unfinished, 'translation', 'translations')} stopped by the length limit")
        return "; ".join(facts)
