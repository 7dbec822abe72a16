"""Section with the forecast of a run, which was made before it started, and its outcome."""

from collections.abc import Iterator

from tercet.checkpoint.forecast import read_forecast
from tercet.reports.markup import Section, element, join, scrolling_table
from tercet.reports.subject import ReportSubject


def forecast_section(subject: ReportSubject) -> Iterator[Section]:
    """Yield the section of a run with a forecast; nothing for other subjects."""
    forecast = None if subject.run is None else read_forecast(subject.folder)
    if forecast is None:
        return
    losses = [loss for _, loss in subject.columns["val/loss"]]
    outcome = [element("p", forecast.describe_outcome(min(losses)))] if losses else []
    table = scrolling_table(
        forecast.candidate_rows(), label="Sizes that were considered; * chosen", header=forecast.CANDIDATE_HEADER,
        right=(True,) * len(forecast.CANDIDATE_HEADER),
    )  # fmt: skip
    body = join(*outcome, element("p", " ".join(forecast.reasons)), table)
    yield Section(id="forecast", title="Forecast", body=body)
