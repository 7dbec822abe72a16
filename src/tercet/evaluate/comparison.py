"""Which of two models translates better: only where both were scored alike, and by more than chance would give.

The chance is that of a paired bootstrap (Koehn 2004): both models on the same resampled sentences, a thousand times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tercet.config import UserError
from tercet.evaluate.protocols import Protocol, bleu_tokenizer, prepare_texts
from tercet.evaluate.translation import RESAMPLES, metrics

MATCHING_FIELDS = {  # what must be equal, and how to make it so
    "signature": "score both with one version of sacrebleu and one --protocol",
    "chrf_signature": "score both with one version of sacrebleu and one --protocol",
    "protocol": "score both with one --protocol",
    "references": "score both on the same --source and --target, or the same --part",
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Attributes:
    bleu, chrf: how much the first is above the second.
    p_value: the chance of so large a difference in BLEU between equally good models; None without both's translations.
    """

    bleu: float
    chrf: float
    p_value: float | None = None


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """The first result less the second; results are as `tercet evaluate --json` writes them.

    Raises:
        UserError: where one is no such result, or they differ in signature, protocol or references.
    """
    for result in (first, second):
        missing = [key for key in ("bleu", "chrf", *MATCHING_FIELDS) if key not in result]
        if missing:
            raise UserError(
                f"a result without {' and '.join(missing)} cannot be compared; write it with `tercet evaluate --json`"
            )
    for key, remedy in MATCHING_FIELDS.items():
        if first[key] != second[key]:
            raise UserError(
                f"the results do not compare: their {key.replace('_', ' ')} differ "
                f"({_short(first[key])} and {_short(second[key])}); {remedy}"
            )
    return Comparison(bleu=first["bleu"] - second["bleu"], chrf=first["chrf"] - second["chrf"])


def paired_bootstrap(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    protocol: Protocol = "detokenised",
    language: str | None = None,
) -> float:
    """The p-value of the difference in BLEU between two lists of translations of the same sentences.

    Raises:
        UserError: where the protocol lacks what it needs.
    """
    from sacrebleu.significance import PairedTest

    systems: list[tuple[str, Sequence[str]]] = [
        (name, prepare_texts(texts, protocol, language)) for name, texts in (("other", second), ("one", first))
    ]
    if systems[0][1] == systems[1][1]:
        return 1.0  # where sacrebleu, which counts differences above the one found, would say 0.001
    metric, _ = metrics(protocol, bleu_tokenizer(protocol, language, references))
    test = PairedTest(
        systems, {"BLEU": metric}, [prepare_texts(references, protocol, language)], test_type="bs", n_samples=RESAMPLES
    )
    _, scores = test()
    return float(cast(Any, scores["BLEU"][1]).p_value)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 100 and "|" in text else text[:12]
