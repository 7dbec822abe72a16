"""`tercet convert`: a model's folder as another kind of folder."""

import argparse
from pathlib import Path

from tercet.cli.parser import Verbs


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "convert",
        help=summary,
        description="Write the model in SRC as another folder, whose path is printed. SRC may be a run, one of our "
        "model folders, a GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma, BERT, RoBERTa, DistilBERT or Marian as the "
        "transformers library keeps it, or a Llama or GPT-2 in a GGUF file; it is recognised by itself. A model that "
        "has no equal there is refused, by the first setting that is in the way.",
        epilog="Examples: tercet convert runs/mine mine-for-transformers --to hf; tercet convert model.gguf here",
    )
    parser.add_argument("src", metavar="SRC", help="the folder of a run or of a model, or a .gguf file")
    parser.add_argument("dst", metavar="DST", help="the folder to write: not there yet, or empty")
    parser.add_argument(
        "--to",
        metavar="KIND",
        help="hf: a folder that AutoModel and AutoTokenizer open; ctranslate2: one that CTranslate2 runs; gguf: a "
        "file for llama.cpp; onnx: one for onnxruntime; peft: an adapter alone, for a model of transformers (default: "
        "one of our folders)",
    )
    parser.add_argument("--merge", action="store_true", help="make one model of an adapter and its model")
    parser.add_argument("--force", action="store_true", help="write over the model in DST")


def run(args: argparse.Namespace) -> int:
    from tercet.checkpoint.find_model import find_model

    find_model(Path(args.src))  # refused before torch is imported

    from tercet.checkpoint import convert

    print(convert(args.src, args.dst, args.to, merge=args.merge, force=args.force))
    return 0
