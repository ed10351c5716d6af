"""The errors that a person may see: what is wrong, where it is, how to mend it."""


class UserError(Exception):
    """Something that the person at the keyboard can mend; shown without a traceback.

    `what` is one sentence; `where` names the file, column, row or configuration key; `mend` says what to do.
    """

    def __init__(self, what: str, *, where: str = "", mend: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.mend = mend

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.mend:
            lines.append(f"  mend:  {self.mend}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only fields are lost by the default pickling, and a sweep's jobs may cross processes.
        return (_rebuild, (type(self), self.what, self.where, self.mend))


def _rebuild(kind: type[UserError], what: str, where: str, mend: str) -> UserError:
    return kind(what, where=where, mend=mend)


class ConfigError(UserError):
    """A configuration key has a value that cannot be used, alone or beside another key."""


class DataError(UserError):
    """The input data cannot be read, or holds what no model should be trained on."""


class TrainingError(UserError):
    """Training cannot go on: a loss that is no number, or no step that could be taken."""


class AuditError(UserError):
    """A policy did not free what it claimed to free, and `audit=strict` does not let that pass."""


class TrackingError(UserError):
    """The MLflow store cannot be opened or holds nothing that matches."""


class Killed(BaseException):
    """The process was asked to end (SIGTERM). Not an Exception, so that nothing takes it for the failure of a job."""
