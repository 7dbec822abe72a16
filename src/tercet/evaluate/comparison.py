"""Comparison of two translation models that were scored in the same way, and the significance of the difference.

The p-value is that of a paired bootstrap (Koehn 2004), which scores both models on the same resampled sentences, a
thousand times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tercet.config import UserError
from tercet.evaluate.protocols import Protocol, bleu_tokenizer, prepare_texts
from tercet.evaluate.translation import RESAMPLES, metrics

MATCHING_FIELDS = {  # fields that must be equal, and the remedy
    "signature": "score both with one version of sacrebleu and one --protocol",
    "chrf_signature": "score both with one version of sacrebleu and one --protocol",
    "protocol": "score both with one --protocol",
    "references": "score both on the same --source and --target, or the same --part",
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences between two results.

    Attributes:
        bleu, chrf: Difference of the scores, first minus second.
        p_value: Probability of a difference in BLEU at least as large between equally good models, as from
            `paired_bootstrap`; None if it was not computed.
    """

    bleu: float
    chrf: float
    p_value: float | None = None


def check_result(result: Mapping[str, Any]) -> None:
    """Check that a result, such as one that was read from a file, has the fields that `compare` reads.

    Raises:
        UserError: If a field is missing, or is not of its type.
    """
    fields: dict[str, type | tuple[type, ...]] = {"bleu": (float, int), "chrf": (float, int)}
    fields |= dict.fromkeys(MATCHING_FIELDS, str)
    if missing := [name for name in fields if name not in result]:
        raise UserError(
            f"cannot compare a result without {' and '.join(missing)}; write it with `tercet evaluate --json`"
        )
    fields |= {name: str for name in ("output", "output_sha256") if name in result}
    if wrong := [name for name, kind in fields.items() if not isinstance(result[name], kind)]:
        raise UserError(f"cannot compare a result with an invalid {wrong[0]}; write it with `tercet evaluate --json`")


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """Return the scores of the first result minus those of the second, without a p-value.

    Args:
        first, second: Results in the format of `tercet evaluate --json`.

    Raises:
        UserError: If a result has another format, or the signatures, protocols or references differ.
    """
    for result in (first, second):
        check_result(result)
    for key, remedy in MATCHING_FIELDS.items():
        if first[key] != second[key]:
            raise UserError(
                f"cannot compare the results: different {key.replace('_', ' ')} "
                f"({_short(first[key])} and {_short(second[key])}); {remedy}"
            )
    return Comparison(bleu=first["bleu"] - second["bleu"], chrf=first["chrf"] - second["chrf"])


def paired_bootstrap(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    protocol: Protocol = "detokenized",
    language: str | None = None,
) -> float:
    """Return the p-value of the difference in BLEU between translations of the same sentences.

    Args:
        first, second: Translations of both models.
        references: References of the sentences.
        protocol: Preparation of the texts.
        language: Language of the texts, as in `score_translations`.

    Raises:
        UserError: If the protocol requires a language or a package that is missing.
    """
    from sacrebleu.significance import PairedTest

    systems: list[tuple[str, Sequence[str]]] = [
        (name, prepare_texts(texts, protocol, language)) for name, texts in (("other", second), ("one", first))
    ]
    if systems[0][1] == systems[1][1]:
        return 1.0  # sacrebleu counts larger differences only, and would return 0.001
    metric, _ = metrics(protocol, bleu_tokenizer(protocol, language, references))
    test = PairedTest(
        systems, {"BLEU": metric}, [prepare_texts(references, protocol, language)], test_type="bs", n_samples=RESAMPLES
    )
    _, scores = test()
    return float(cast(Any, scores["BLEU"][1]).p_value)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 100 and "|" in text else text[:12]
