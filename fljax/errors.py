"""Errors that a caller may want to catch by name."""

from typing import Any


class PrivacyPreconditionError(ValueError):
    """A bound was asked for outside the conditions under which it is proved."""


class NoGuaranteeError(ValueError):
    """A combination of mechanisms for which no privacy guarantee exists."""


class UnsupportedEventError(ValueError):
    """An accountant met an (event, relation, method) it has no bound for."""


class SensitivityError(AssertionError):
    """A replay on neighbouring inputs moved the output by more than was declared.

    report: the `SensitivityReport` of that replay.
    """

    def __init__(self, message: str, report: Any = None):
        super().__init__(message)
        self.report = report


class CorruptDataError(ValueError):
    """Bytes on disk are not what was written, truncated, foreign or damaged, or hold numbers that
    are not finite.

    The message names the file or client.
    """


class SchemeError(AssertionError):
    """A scheme breaks a contract that every scheme keeps.

    report: the `fljax.testing.SchemeReport`, with all checks.
    """

    def __init__(self, message: str, report: Any = None):
        super().__init__(message)
        self.report = report


class SecureSumError(RuntimeError):
    """A secure sum was aborted: nothing of it is released. Its kinds say why."""


class DropoutError(SecureSumError):
    """More clients dropped out than the terms allow."""


class SignatureError(SecureSumError):
    """A message was not signed by the client that it names."""


class ReplayError(SecureSumError):
    """A message, a step or a round came a second time."""


class SwappedKeyError(SecureSumError):
    """A public key stands in another client's place."""


class SybilError(SecureSumError):
    """Two clients have one key: one party would count as several."""


class MalformedMessageError(SecureSumError):
    """A message has no form that the protocol knows, or was not encrypted by whom it names."""


class MalformedShareError(MalformedMessageError):
    """Shares do not belong to one secret, or not to the one that was promised."""


class InconsistentSurvivorsError(SecureSumError):
    """Clients were told different lists of those who are summed."""
