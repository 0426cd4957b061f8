"""The one exception a user's mistake raises, and how text that others wrote is shown."""

JOINERS = (  # invisible, but Persian, the scripts of India and many emoji are spelled with them
    "\u200c\u200d"
)


class UserError(ValueError):
    """Bad input. The message is one line that says what is wrong and where (file, row, field,
    option).

    The command line prints it and exits with 2. Whatever a message quotes, it is shown as
    `printable` shows it.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), 2000)


def printable(text: object, limit: int = 200) -> str:
    """Text from anywhere as one short line that a terminal, a table or a page shows and never
    obeys.

    Blanks of every kind and number become one space. Control characters, bidirectional and other
    invisible marks and lone surrogates stand as their Python escapes. What is longer than `limit`
    characters ends in "…".
    """
    whole = str(text)
    line = " ".join(whole[:limit].split())
    line = "".join(
        c if c.isprintable() or c in JOINERS else c.encode("unicode_escape").decode() for c in line
    )
    return line if max(len(whole), len(line)) <= limit else line[: limit - 1] + "…"
