"""Serve a model's page, or write it to a file."""

from pathlib import Path

from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.explorer.answers import Answers
from tercet.explorer.export import write_page
from tercet.explorer.opening_query import opening_query
from tercet.messages import print_note
from tercet.models import stack_specs
from tercet.storage import check_output_file

MISSING = (
    "tercet explore needs starlette and uvicorn: pip install 'tercet[explore]'; or write a page with --export PAGE.html"
)


def explore(
    trained_model: TrainedModel,
    prompt: str | None = None,
    *,
    target: str | None = None,
    export: str | Path | None = None,
    host: str,
    port: int,
    browse: bool = False,
) -> None:
    """See `Run.explore`."""
    for stack in stack_specs(trained_model.model.spec):
        for part in (stack.feedforward, stack.attention):
            if part is not None:
                raise UserError(f"the explorer only knows Tercet's blocks, and this model has {part.kind}")
    if export is not None:
        check_output_file(Path(export), "--export", example="page.html")
        serve = None
    else:
        try:
            from tercet.explorer.server import serve
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
                raise
            raise UserError(MISSING) from None
    answers = Answers(trained_model, start=opening_query(trained_model, prompt, target=target))
    if answers.passes(answers.start).recording.truncated:  # raises UserError if the text cannot be read
        print_note(
            f"tercet: the text is longer than the context and was truncated to {trained_model.model.max_len:,} tokens"
        )
    if serve is not None:
        serve(answers, host=host, port=port, browse=browse)
        return
    n_bytes = write_page(answers, Path(str(export)))
    print_note(f"tercet: wrote {export}, {n_bytes / 1e6:.1f} MB")
