"""Tokens as labels that can be read: white space by name, what cannot be printed escaped."""

BLANKS = {" ": "(space)", "\n": "(newline)", "\t": "(tab)", "": "(nothing)"}


def label_token(token: str) -> str:
    """A token's text without the space before it; white space alone, which would be invisible, by name."""
    return _escape(token.strip()) or BLANKS.get(token, "(space)")


def label_with_spaces(token: str) -> str:
    """A token's text with its spaces, for where " the" and "the" stand side by side."""
    return _escape(token.replace(" ", "␣")) if token.strip() else label_token(token)


def _escape(text: str) -> str:
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
