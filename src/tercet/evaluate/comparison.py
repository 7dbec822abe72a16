"""Which of two models translates better: only where both were scored alike, and by more than chance would give.

The chance is that of a paired bootstrap (Koehn 2004): both models on the same resampled sentences, a thousand times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tercet.config import UserError
from tercet.evaluate.protocols import Protocol, bleu_tokenizer, prepare_texts
from tercet.evaluate.translation import RESAMPLES, metrics

SAME = {  # what must be equal, and how to make it so
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


def compare(one: Mapping[str, Any], other: Mapping[str, Any]) -> Comparison:
    """The first result less the second; results are as `tercet evaluate --json` writes them.

    Raises:
        UserError: where one is no such result, or they differ in signature, protocol or references.
    """
    for result in (one, other):
        missing = [key for key in ("bleu", "chrf", *SAME) if key not in result]
        if missing:
            raise UserError(
                f"a result without {' and '.join(missing)} cannot be compared; write it with `tercet evaluate --json`"
            )
    for key, remedy in SAME.items():
        if one[key] != other[key]:
            raise UserError(
                f"the results do not compare: their {key.replace('_', ' ')} differ "
                f"({_short(one[key])} and {_short(other[key])}); {remedy}"
            )
    return Comparison(bleu=one["bleu"] - other["bleu"], chrf=one["chrf"] - other["chrf"])


def paired_bootstrap(
    one: Sequence[str],
    other: Sequence[str],
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
        (name, prepare_texts(texts, protocol, language)) for name, texts in (("other", other), ("one", one))
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
