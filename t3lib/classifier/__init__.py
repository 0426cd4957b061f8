"""The classifier f(x, y): the head, what it reads, how it is fitted, and how it lies on disk."""
