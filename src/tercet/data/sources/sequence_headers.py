"""Values in the headers of FASTA and FASTQ records, such as a label.

A header such as `>seq1 family=kinase [organism=Homo sapiens] note="two words"` has the fields `family`, `organism` and
`note`. The value of `key=value` ends at white space, `;`, `|` or a bracket. Other headers are read with a pattern.
"""

import re

_FIELD = re.compile(r'\[([\w.:-]+)=([^\]]*)\]|([\w.:-]+)=(?:"([^"]*)"|([^\s;|\[\]]*))')


def parse_header(header: str) -> dict[str, str]:
    """Return the fields of a header; the first one if a key occurs several times."""
    fields = dict[str, str]()
    for match in _FIELD.finditer(header):
        bracket_key, bracket_value, key, quoted_value, value = match.groups()
        found = next(text for text in (bracket_value, quoted_value, value) if text is not None)
        fields.setdefault(bracket_key or key, found.strip())
    return fields


def find_value(header: str, field: str, pattern: str | None) -> str | None:
    """Return the value of a header; None if it has none.

    Args:
        header: Header of a record, without its first character.
        field: Key of the value if there is no pattern.
        pattern: Regular expression with one group, which matches the value; None to use `field`.
    """
    if pattern is None:
        return parse_header(header).get(field)
    match = re.search(pattern, header)
    return (match[1] or "").strip() if match else None


def check_pattern(name: str, pattern: str) -> None:
    """Check a regular expression for `find_value`.

    Args:
        name: Name of the setting in messages.
        pattern: The regular expression.

    Raises:
        ValueError: If it is invalid, or does not have exactly one group.
    """
    try:
        groups = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{name}={pattern!r} is not a regular expression ({error}); correct it") from None
    if groups != 1:
        raise ValueError(
            rf"{name}={pattern!r} has {groups} groups; put parentheses around the value only, as in 'family=(\w+)'"
        )
