"""The classifier f(x, y): the head, the features it reads, how it is fitted, how it is saved."""
