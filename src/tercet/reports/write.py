"""Write the report as one file that contains its styles and pictures, so that the page sends no requests."""

from pathlib import Path

import torch

from tercet.checkpoint import TrainedModel
from tercet.checkpoint.metrics import training_time
from tercet.notebook import format_count, format_duration
from tercet.reports.attention_section import attention_section
from tercet.reports.document import html_document
from tercet.reports.errors_page import errors_section
from tercet.reports.forecast_section import forecast_section
from tercet.reports.markup import Markup, element, join, paragraph
from tercet.reports.model_sections import data_section, model_section, recipe_section, versions_section
from tercet.reports.run_sections import cost_section, curves_section, samples_section
from tercet.reports.score_section import score_section
from tercet.reports.subject import ReportSubject, open_subject
from tercet.storage import check_output_file, write_atomically

NAME = "report.html"


def report(run: str | Path, out: str | Path | None = None, *, evaluate: bool = False) -> Path:
    """Write a run's report, as `tercet watch --export` does, and return its path.

    Args:
        run: Folder of a run, which may be training, or of a model.
        out: Path of the file. By default, it is report.html in the folder; for a model that is a single file, it has
            the name of the model and the suffix .html. An existing file is replaced.
        evaluate: If True, also score the model on held-out data and compare it with baselines.

    Raises:
        UserError: If there is neither a run nor a model, the file cannot be written, or the model is to be scored and
            its data is not available.
    """
    return write_report(Path(run), out, evaluate=evaluate)


def write_report(
    folder: Path,
    out: str | Path | None,
    *,
    evaluate: bool,
    trained_model: TrainedModel | None = None,
    device: torch.device | None = None,
) -> Path:
    """Write a report and return its path; `report` documents the other arguments and the errors.

    Args:
        trained_model: Model of the folder if it has already been loaded.
        device: Device to which the model is moved; None for its current device.
    """
    if out is not None:
        check_output_file(Path(out), "out", example="page.html")  # before the run is read, which may take long
    subject = open_subject(folder, trained_model)
    if subject.trained_model is not None and device is not None:
        subject.trained_model.model.to(device)
    default_path = subject.folder.with_suffix(".html") if subject.folder.is_file() else subject.folder / NAME
    path = default_path if out is None else Path(out)
    check_output_file(path, "out", example="page.html")
    write_atomically(path, report_page(subject, evaluate=evaluate).encode())
    return path


def report_page(subject: ReportSubject, *, evaluate: bool = False) -> str:
    """Return the report as an HTML document.

    Args:
        subject: Subject of the report.
        evaluate: If True, also score the model on held-out data.

    Raises:
        UserError: If the model is to be scored and its data is not available.
    """
    sections = (
        score_section(subject, evaluate=evaluate),
        *errors_section(subject, evaluate=evaluate),
        *forecast_section(subject),
        curves_section(subject),
        samples_section(subject),
        model_section(subject),
        attention_section(subject),
        data_section(subject),
        cost_section(subject),
        recipe_section(subject),
        versions_section(subject),
    )
    return html_document(title=f"{subject.name}: report", header=_header(subject), sections=sections)


def _header(subject: ReportSubject) -> Markup:
    trained_model = subject.trained_model
    descriptions = (
        "" if trained_model is None else trained_model.kind,
        "" if trained_model is None else trained_model.card.choice,
    )
    lead = ", ".join(filter(None, descriptions)) or "a run without a saved model"
    warnings = [paragraph(warning, class_="problem") for warning in subject.warnings]
    return element(
        "header",
        element("h1", subject.name),
        paragraph(lead[:1].upper() + lead[1:], class_="lead"),
        paragraph(describe_state(subject), class_="state"),
        *warnings,
        _figures(subject),
    )


def describe_state(subject: ReportSubject) -> str:
    """Return sentences about the state of the run, or about the absence of a run."""
    if subject.run is None:
        return (
            "A model without a run: its curves, samples and costs are not known; write a report of the run folder to "
            "include them."
        )
    status = subject.status
    if status is None:
        return "The state of the run cannot be read."
    total_text = "" if status.total is None else f" of {status.total:,}"
    saved_step = 0 if subject.record is None else subject.record.saved  # may be later than the last logged step
    step = max(status.step, saved_step)
    saved_note = f"; saved as of step {saved_step:,}" if 0 < saved_step < step else ""
    match status.state:
        case "finished":
            early = total_text if status.total is not None and step < status.total else ""
            return f"Finished after {step:,}{early} steps."
        case "running":
            return (
                f"Still running: at step {step:,}{total_text} when this report was written{saved_note}. "
                "Write it again when training has finished."
            )
        case "interrupted":
            return f"Interrupted at step {step:,}{total_text}{saved_note}. `tercet train` resumes from there."
        case _:
            return "The run has not started."


def _figures(subject: ReportSubject) -> Markup:
    """Return the list of the most important numbers; empty if none is known."""
    trained_model, time = subject.trained_model, training_time(subject.columns)
    losses = subject.columns["val/loss"]
    facts = {
        "parameters": "" if trained_model is None else format_count(trained_model.n_parameters),
        "lowest validation loss": f"{min(loss for _, loss in losses):.4f}" if losses else "",
        "training": "" if time is None else format_duration(time.seconds),
        "tokens read": "" if time is None or time.tokens is None else format_count(time.tokens),
    }
    pairs = [element("div", element("dt", name), element("dd", value)) for name, value in facts.items() if value]
    return element("dl", *pairs, class_="figures") if pairs else join()
