"""Every way in which kvplan ends without an answer, each with its exit code.

"Does not fit" and "a limit is broken" are answers, so they are results, never exceptions.
"""

from typing import ClassVar


class KvplanError(Exception):
    """A failure with a message (what happened), a hint (what to do next) and the place it came from."""

    exit_code: ClassVar[int] = 70

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        file: str | None = None,
        line: int | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.file = file
        self.line = line
        self.key = key


class InputError(KvplanError):
    """A file or value that the user gave is wrong."""

    exit_code = 3


def unreadable(path: object, error: Exception) -> InputError:
    """The error for a file or folder that cannot be read, or that ends too early."""
    return InputError(
        f"cannot be read: {getattr(error, 'strerror', None) or error}",
        hint="check that it exists and that you may read it",
        file=str(path),
    )


def without_user_info(url: str) -> str:
    """``url`` without a user and password, as messages show it; also where it is malformed.

    >>> without_user_info("https://me:p@ss/word@hub.example.org/models")
    'https://hub.example.org/models'
    >>> without_user_info("me:secret@hub")
    'hub'
    """
    scheme, separator, rest = url.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2]


class ModelUnavailableError(KvplanError):
    """The model is not available: not found, gated, or offline and not cached."""

    exit_code = 4


class UnsupportedModelError(KvplanError):
    """The config or a flag uses something that kvplan does not model; it refuses rather than guesses."""

    exit_code = 5
