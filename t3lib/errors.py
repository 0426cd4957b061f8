"""The one exception a user's mistake raises; the command line prints it as one line and exits with 2."""


class UserError(ValueError):
    """Bad input. The message is one line that says what is wrong and where (file, row, field, option)."""
