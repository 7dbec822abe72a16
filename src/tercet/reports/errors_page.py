"""The errors of a model as sections of a page: tables of tokens, and texts whose tokens are shaded by their losses."""

from collections.abc import Iterable, Sequence

from tercet.checkpoint import TrainedModel
from tercet.evaluate import LabelErrors, ModelErrors, PairErrors, RegressionErrors, TextErrors, find_errors
from tercet.evaluate.errors.find_errors import lists_errors
from tercet.evaluate.errors.labels import NONE, Confusion, WrongLabel
from tercet.evaluate.errors.pairs import WorstPair
from tercet.evaluate.errors.texts import WorstText
from tercet.evaluate.errors.token_errors import WorstToken, token_table
from tercet.messages import counted, one_line
from tercet.notebook import Table
from tercet.reports.document import html_document
from tercet.reports.markup import Markup, Section, collapsed_block, element, join, missing, paragraph, scrolling_table
from tercet.reports.subject import ReportSubject

# Lower bounds, in nats, of the shades of a token.
SHADES = (1.0, 2.0, 3.0, 4.5, 6.0, 8.0)
TOP = 5  # errors of each list in the report of a run
LEGEND = "A stronger color marks a higher loss; the tooltip of a token contains it in nats."


def errors_page(errors: ModelErrors, trained_model: TrainedModel, name: str) -> str:
    """Return the errors of a model as an HTML document.

    Args:
        errors: The errors.
        trained_model: The model.
        name: Name of the model, without folders of this machine.
    """
    kind = trained_model.kind
    header = element(
        "header",
        element("h1", f"{one_line(name)}: errors"),
        paragraph(kind[:1].upper() + kind[1:], class_="lead"),
        paragraph(_summary(errors), class_="state"),
    )
    return html_document(
        title=f"{one_line(name)}: errors", header=header, sections=error_sections(errors), noun="errors"
    )


def errors_section(subject: ReportSubject, *, evaluate: bool) -> tuple[Section, ...]:
    """Return the section of a report with the worst errors; nothing unless the model is to be evaluated.

    Raises:
        UserError: If the held-out data of the model is not available.
    """
    if not evaluate or subject.trained_model is None or not lists_errors(subject.trained_model):
        return ()
    errors = find_errors(subject.trained_model, top=TOP)
    parts = [join(element("h3", section.title), section.body) for section in error_sections(errors)]
    return (Section(id="errors", title="Errors", body=join(paragraph(_summary(errors)), *parts)),)


def error_sections(errors: ModelErrors) -> tuple[Section, ...]:
    """Return the sections of a page about the errors of a model."""
    match errors:
        case TextErrors():
            return (
                *_token_sections(errors.tokens_by_total, errors.tokens_by_mean),
                Section(id="texts", title="Texts", body=join(_legend(), *map(_text, errors.worst))),
            )
        case PairErrors():
            return (
                Section(id="pairs", title="Sentence pairs", body=join(_legend(), *map(_pair, errors.worst))),
                *_token_sections(errors.tokens_by_total, errors.tokens_by_mean),
            )
        case LabelErrors():
            return (
                Section(id="confusions", title="Confusions", body=_confusions(errors.confusions)),
                Section(id="mistakes", title="Most confident mistakes", body=_mistakes(errors.worst)),
            )
        case RegressionErrors():
            return (Section(id="numbers", title="Largest errors", body=_numbers(errors)),)


def _summary(errors: ModelErrors) -> str:
    """Return the facts below the tables of a terminal."""
    facts = errors.view().parts[-1]
    assert isinstance(facts, str)
    return f"{facts[:1].upper()}{facts[1:]}."


def _token_sections(by_total: Sequence[WorstToken], by_mean: Sequence[WorstToken]) -> tuple[Section, ...]:
    tables = token_table(by_total, title="token"), token_table(by_mean, title="token")
    notes = "Their losses are largest in total.", "Their losses are largest on average."
    body = join(
        *(join(paragraph(note, class_="note"), _table(table)) for note, table in zip(notes, tables, strict=True))
    )
    return (Section(id="tokens", title="Tokens", body=body),)


def _table(table: Table) -> Markup:
    return scrolling_table(table.rows, label="", header=table.header, right=table.right)


def _legend() -> Markup:
    return paragraph(LEGEND, class_="note")


def _text(text: WorstText) -> Markup:
    place = f"text {text.index:,}" + (f", from token {text.start:,}" if text.start else "")
    caption = f"{place}: {text.mean_loss:.3f} nats per token, {text.total_loss:,.1f} nats, {text.scored:,} tokens"
    predicted = text.predicted or (None,) * len(text.tokens)
    return element(
        "div", paragraph(caption, class_="note"), _shaded(text.tokens, text.losses, predicted), class_="item"
    )


def _shaded(tokens: Iterable[str], losses: Iterable[float | None], predicted: Iterable[str | None]) -> Markup:
    """Return tokens with shades and tooltips."""
    spans = list[Markup]()
    for token, loss, guess in zip(tokens, losses, predicted, strict=True):
        token = token if spans else token.lstrip(" ")
        if loss is None:
            spans.append(element("span", token, class_="unscored"))
            continue
        shade = sum(loss >= bound for bound in SHADES)
        title = f"{loss:.3f} nats" + ("" if guess is None else f"; predicted: {guess}")
        spans.append(element("span", token, class_=f"shade{shade}", title=title))
    return element("p", *spans, class_="tokens", dir="auto", lang="")


def _pair(pair: WorstPair) -> Markup:
    caption = (
        f"pair {pair.index:,}: {pair.mean_loss:.3f} nats per token, {pair.total_loss:,.1f} nats, chrF {pair.chrf:.1f}"
    )
    sides = [
        ("source", join(pair.source)),
        ("reference", _shaded(pair.tokens, pair.losses, (None,) * len(pair.tokens))),
        ("translation", join(pair.translation)),
    ]
    rows = [
        element("tr", element("th", name, scope="row"), element("td", side, dir="auto", lang=""))
        for name, side in sides
    ]
    words = [(source, target, f"{loss:.2f}") for source, target, loss in pair.words]
    table = scrolling_table(words, label="", header=("source", "reference", "nats"), right=(False, False, True))
    alignment = collapsed_block("Alignment", table) if words else join()
    return element(
        "div", paragraph(caption, class_="note"), element("table", element("tbody", *rows)), alignment, class_="item"
    )


def _confusions(confusions: Sequence[Confusion]) -> Markup:
    if not confusions:
        return missing("There are no mistakes.")
    rows = [(confusion.true or NONE, confusion.predicted or NONE, f"{confusion.count:,}") for confusion in confusions]
    blocks = [
        collapsed_block(
            f"{confusion.true or NONE} predicted as {confusion.predicted or NONE}: "
            f"{counted(confusion.count, 'mistake', 'mistakes')}",
            _mistakes(confusion.examples),
        )
        for confusion in confusions
    ]
    table = scrolling_table(rows, label="", header=("true", "predicted", "count"), right=(False, False, True))
    return join(table, *blocks)


def _mistakes(mistakes: Sequence[WrongLabel]) -> Markup:
    if not mistakes:
        return missing("There are no mistakes.")
    rows = [
        (
            f"{wrong.index:,}", wrong.true or NONE, wrong.predicted or NONE, f"{wrong.probability:.1%}",
            *([] if wrong.word is None else [wrong.word]), " | ".join(filter(None, (wrong.text, wrong.pair))),
        )
        for wrong in mistakes
    ]  # fmt: skip
    words = [] if mistakes[0].word is None else ["word"]
    header = ("number", "true", "predicted", "confidence", *words, "text")
    return scrolling_table(rows, label="", header=header, right=(False, False, False, True))


def _numbers(errors: RegressionErrors) -> Markup:
    rows = [
        (
            f"{wrong.index:,}", f"{wrong.true:.5g}", f"{wrong.predicted:.5g}", f"{wrong.error:+.5g}",
            " | ".join(filter(None, (wrong.text, wrong.pair))),
        )
        for wrong in errors.worst
    ]  # fmt: skip
    header = ("number", "true", "predicted", "error", "text")
    return scrolling_table(rows, label="", header=header, right=(False, True, True, True))
