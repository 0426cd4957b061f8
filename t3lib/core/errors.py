"""The exceptions that end in one line, and the safe display of text that others wrote."""

# Invisible, but Persian, the scripts of India and many emoji are spelled with them.
JOINERS = "\u200c\u200d"


class UserError(ValueError):
    """A user's mistake. The message is one line: what is wrong and where (file, row, option).

    The command line prints the message and exits with code 2. str(error) passes through
    `printable`, so text quoted from a user's file cannot control the terminal.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), 2000)


class Diverged(UserError):
    """A training whose loss, gradient or weights became NaN or infinite."""


def printable(text: object, limit: int = 200) -> str:
    """Return any text as one short line that is safe to print in a terminal, a table or a page.

    Each run of whitespace becomes one space. Control characters, bidirectional and other invisible
    marks and lone surrogates are replaced by their Python escapes. A line longer than `limit`
    characters is cut and ends in "…".
    """
    whole = str(text)
    line = " ".join(whole[:limit].split())
    line = "".join(
        c if c.isprintable() or c in JOINERS else c.encode("unicode_escape").decode() for c in line
    )
    return line if max(len(whole), len(line)) <= limit else line[: limit - 1] + "…"
