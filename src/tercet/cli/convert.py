"""`tercet convert`: convert a model to another format."""

import argparse
import json
from pathlib import Path

from tercet.cli.parser import Verbs, out_path


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "convert",
        help=summary,
        description="Convert the model in SRC to another format, and print the path of the result. SRC may be a run, "
        "a Tercet model folder, a folder of the transformers library or of Sentence-Transformers, an adapter of peft, "
        "or a GGUF file. Its format is detected automatically. If the other format cannot represent the "
        "model, the error message contains the first setting that prevents it. For an unsupported architecture, "
        "it lists the supported ones.",
        epilog="Examples: tercet convert runs/mine mine-for-transformers --to hf; tercet convert model.gguf here; "
        "tercet convert runs/mine hf://user/mine --to hf",
    )
    parser.add_argument("src", metavar="SRC", help="folder of a run or model, .gguf file, or hf://user/name")
    parser.add_argument(
        "dst",
        metavar="DST",
        type=out_path,
        help="folder to write, which must be empty or not exist yet (unless --force is passed), or hf://user/name to "
        "upload the model",
    )
    parser.add_argument(
        "--to",
        metavar="KIND",
        help="output format: hf (for the transformers library), sentence-transformers (for vectors of texts), "
        "ctranslate2, gguf (for llama.cpp), onnx (for onnxruntime) or peft (only the adapter, for a model of "
        "transformers); default: a Tercet model folder",
    )
    parser.add_argument("--merge", action="store_true", help="merge an adapter into its base model")
    parser.add_argument("--force", action="store_true", help="replace the model in DST; other files stay")
    parser.add_argument("--json", action="store_true", help="print one JSON object: output, the path of the result")


def run(args: argparse.Namespace) -> int:
    from tercet.checkpoint.find_model import find_model
    from tercet.checkpoint.hub import is_on_hub, parse_address

    if is_on_hub(args.dst):
        args.dst = str(parse_address(args.dst))
    find_model(Path(args.src))  # reject invalid models before torch is imported

    from tercet.checkpoint import convert

    path = convert(args.src, args.dst, args.to, merge=args.merge, force=args.force)
    output = str(args.dst if is_on_hub(args.dst) else path)
    print(json.dumps({"output": output}, ensure_ascii=False) if args.json else output)
    return 0
