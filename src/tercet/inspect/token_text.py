"""Readable labels of tokens, with names for white space and escapes for characters that cannot be printed."""

BLANKS = {" ": "(space)", "\n": "(newline)", "\t": "(tab)", "": "(nothing)"}


def label_token(token: str) -> str:
    """Return a token's text without surrounding spaces; white space is named, as it would be invisible."""
    return _escape(token.strip()) or BLANKS.get(token, "(space)")


def label_with_spaces(token: str) -> str:
    """Return a token's text with visible spaces, to distinguish " the" from "the"."""
    return _escape(token.replace(" ", "␣")) if token.strip() else label_token(token)


def _escape(text: str) -> str:
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
