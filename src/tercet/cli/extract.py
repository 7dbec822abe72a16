"""`tercet data extract`: write the texts or translations of documents to a JSONL file."""

import argparse
import json
from dataclasses import asdict

from tercet.cli.next_steps import quote_path
from tercet.cli.parser import Parser, out_path
from tercet.messages import counted, print_note

MAX_UNREADABLE = 10  # maximum number of files that could not be read to list


def add_extract(data: Parser) -> None:
    """Add the form `tercet data extract`."""
    parser = data.add_form(
        "extract",
        "Extract the texts of documents (HTML, Markdown, reStructuredText, PDF, DOCX, XLSX, ODS, EPUB, notebooks, "
        "subtitles, mail and plain text), one per line of a JSONL file with its origin; or with --pairs the sentence "
        "pairs of translation memories (.po, .tmx, .xlsx). Requires tercet[documents]. A source named extract must be "
        "passed as ./extract.",
        epilog="Example: tercet data extract reports/ --out texts.jsonl --main-text --drop-duplicates",
    )
    parser.add_argument("sources", metavar="SOURCE", nargs="+", help="files and folders of documents")
    parser.add_argument("--out", metavar="FILE", type=out_path, help="JSONL file to write (required)")
    parser.add_argument("--encoding", metavar="NAME", help="encoding of text files (default: detected for each file)")
    parser.add_argument("--pairs", action="store_true", help="extract sentence pairs of translation memories")
    parser.add_argument(
        "--source-language",
        metavar="CODE",
        default="",
        help="language or column of the source, such as en, with --pairs",
    )
    parser.add_argument(
        "--target-language",
        metavar="CODE",
        default="",
        help="language or column of the target, such as de, with --pairs",
    )
    parser.add_argument(
        "--split", action="store_true", help="write each page, chapter, sheet or cell of a document on its own line"
    )
    parser.add_argument(
        "--main-text", action="store_true",
        help="remove navigation of web pages, headers and footers of PDF pages, and quotes and signatures of mail",
    )  # fmt: skip
    parser.add_argument(
        "--drop-duplicates", action="store_true",
        help="leave out texts that equal an earlier one except for case, punctuation and white space",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run_extract(args: argparse.Namespace) -> int:
    """Extract the documents, print the report, and return the exit code: 2 if some files could not be read, else 0.

    Raises:
        UserError: If nothing could be extracted, the output cannot be written, or flags exclude each other.
    """
    from tercet.config import UserError
    from tercet.data.extraction.extract import Extraction, extract_documents
    from tercet.data.sources.formats import describe_left_out
    from tercet.data.specs import TextSpec

    if args.out is None:
        raise UserError("the output file is missing; pass --out texts.jsonl")
    if args.pairs and (args.split or args.main_text):
        raise UserError(
            f"--pairs and {'--split' if args.split else '--main-text'} exclude each other; pass one of them"
        )
    if not args.pairs and (args.source_language or args.target_language):
        raise UserError("--source-language and --target-language require --pairs")
    if args.encoding is not None:
        try:
            TextSpec(source=".", encoding=args.encoding)
        except ValueError as error:
            raise UserError(f"--encoding: {error}") from None
    extraction = Extraction(
        sources=tuple(args.sources), encoding=args.encoding, pairs=args.pairs, source_language=args.source_language,
        target_language=args.target_language, split=args.split, main_text=args.main_text,
        drop_duplicates=args.drop_duplicates,
    )  # fmt: skip
    report = extract_documents(extraction, args.out)
    for unreadable in report.unreadable[:MAX_UNREADABLE]:
        print_note(f"tercet: {unreadable.reason}")
    if report.unreadable:
        n_files = counted(len(report.unreadable), "file", "files")
        print_note(f"tercet: {n_files} could not be read completely; everything else is in {args.out}")
    if args.json:
        print(json.dumps(asdict(report), ensure_ascii=False))
        return 2 if report.unreadable else 0
    print(f"{report.unit:<11} {report.count:,}\ncharacters  {report.characters:,}")
    print(f"files       {', '.join(f'{count:,} {name}' for name, count in sorted(report.files.items()))}")
    if encodings := {name: count for name, count in sorted(report.encodings.items()) if name not in ("utf-8", "ascii")}:
        print(f"encodings   {', '.join(f'{count:,} {name}' for name, count in encodings.items())}")
    if report.left_out:
        n_files = counted(sum(report.left_out.values()), "file", "files")
        print(f"not read    {n_files} of other formats: {describe_left_out(report.left_out)}")
    for number, (reason, count) in enumerate(report.totals().most_common()):
        print(f"{'' if number else 'left out':<11} {count:>7,}  {reason}")
    print(f"Next:\n  tercet data look {quote_path(args.out)}\n  tercet train {quote_path(args.out)}")
    return 2 if report.unreadable else 0
