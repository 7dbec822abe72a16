"""`tercet chat`: chat with a trained model, on a terminal or through a pipe."""

import argparse

from tercet.cli.decoding import add_text_sampling, sampling_options
from tercet.cli.device import add_device, add_quantize, place_model, select_device
from tercet.cli.parser import Verbs
from tercet.messages import print_note


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "chat",
        help=summary,
        description="Chat with a model that has a chat template. Each line is a message; the answer is streamed. Lines "
        "that begin with / are commands; /help lists them. Ctrl-C stops an answer; to quit, press it again or press "
        "Ctrl-D. If the input is a pipe, its lines are read in the same way, and only the answers are printed.",
        epilog="Example: tercet chat runs/chat --system 'Answer in a word.' --temperature 0.7",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run or model, .gguf file, or hf://user/name")
    parser.add_argument("--system", metavar="TEXT", help="system message at the start of the conversation")
    add_text_sampling(parser.add_argument, default_length="default: as many as fit in the context", unit="answer")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object per answer: prompt, text, finish, tokens, seed, dropped",
    )
    add_quantize(parser.add_argument)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.generation.specs import Sampling

    options = sampling_options(args)
    try:
        Sampling(**options)
    except ValueError as error:
        raise UserError(str(error)) from None
    device = select_device(args.device, models=[args.run])

    from tercet.checkpoint import load_model
    from tercet.cli.conversation import Chat
    from tercet.generation import ChatModel
    from tercet.generation.grammar import start_grammar
    from tercet.tokens.chat_template import ChatTemplate

    trained_model = load_model(args.run).require("generate")
    template = ChatTemplate(trained_model.require_chat_template(), trained_model.tokenizer)
    start_grammar(trained_model.tokenizer, Sampling(**options))  # raises if the schema or regex cannot be used
    place_model(trained_model.model, device, args.quantize)
    chat = Chat(
        ChatModel(trained_model.model, trained_model.tokenizer, template), args.system, options, as_json=args.json
    )
    if chat.interactive:
        print_note(f"tercet: {trained_model.describe()}; /help lists commands, Ctrl-D quits")
    chat.talk()
    return 0
