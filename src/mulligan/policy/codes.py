"""The registry of codes: what each means for a person, and its class. One sentence per code, in one place.

A sentence says what happened and, where the person can do something about it, what. Whether and when we try again
is not in it: that is known only once a decision has been made.
"""

from __future__ import annotations

from typing import NamedTuple

from mulligan.core.attempt import RETRYABLE, Cls

PROGRAMMING_ERROR = "py.programming-error"  # the rule a policy may overrule with retry_unknown=True


class Code(NamedTuple):
    name: str
    cls: Cls
    public: str

    @property
    def retryable(self) -> bool:
        return self.cls in RETRYABLE


def _codes(cls: Cls, **sentences: str) -> dict[str, Code]:
    return {name: Code(name, cls, public) for name, public in sentences.items()}


CODES: dict[str, Code] = {
    **_codes(
        Cls.TRANSIENT,
        DEPENDENCY_UNAVAILABLE="Something that the job needs is not available right now.",
        CONNECTION="A connection failed.",
        HTTP_5XX="A service is not available.",
        BUSY="Something the job needs was busy.",
        IO_ERROR="Reading or writing failed.",
        DATABASE_UNAVAILABLE="A database did not answer.",
        DATABASE_CONFLICT="Two changes to the same data met; one of them has to start again.",
        BAD_TRANSFER="A file or an answer arrived damaged.",
        NOT_READY="Something the job needs is not ready yet.",
        MAIL_DEFERRED="The mail server asked us to come back later.",
        RECEIVER_REFUSED="The receiver of a message refused it.",
        STORE_UNAVAILABLE="The job database did not answer.",
        WORKER_LOST="The worker that ran this job went away.",
        RETRY_REQUESTED="The job asked for another try.",
    ),
    **_codes(
        Cls.TIMEOUT,
        TIMEOUT="Something the job waited for took too long.",
    ),
    **_codes(
        Cls.RATE_LIMITED,
        RATE_LIMITED="A service asked us to slow down.",
    ),
    **_codes(
        Cls.RESOURCE,
        MEMORY="There was not enough memory.",
        MEMORY_LIMIT="The job used more memory than it may.",
        DISK_FULL="The disk is full.",
        TOO_MANY_FILES="Too many files or connections are open.",
        DEVICE_BUSY="The graphics or encoding device has no room.",
        SERVICE_FULL="A service has no room left.",
        PROCESS_KILLED="A program was killed from outside.",
    ),
    **_codes(
        Cls.QUOTA,
        QUOTA="A service's quota is used up; it has to be raised, paid or waited for.",
    ),
    **_codes(
        Cls.AUTH,
        AUTH="A service did not accept our credentials.",
        ACCESS_DENIED="A service did not allow what was asked.",
    ),
    **_codes(
        Cls.INVALID_INPUT,
        INVALID_INPUT="The job's input is not valid.",
        BAD_FILE="The file is damaged or of a kind that cannot be read.",
        HTTP_4XX="A service refused the request.",
        MISSING="What the job asked for does not exist.",
        UNAVAILABLE_CONTENT="The content is private, removed or not available here.",
        REFUSED_CONTENT="The content was refused by a service's rules.",
        TOO_LARGE="The input is larger than allowed.",
        DATA_REFUSED="The database refused the data.",
        BAD_ADDRESS="The address does not exist or does not accept mail.",
        PAYLOAD_REFUSED="The job's payload is not what its handler takes.",
    ),
    **_codes(
        Cls.PERMANENT,
        PROGRAMMING_ERROR="The job's code has an error; trying again would not help.",
        CERTIFICATE="The certificate of a server was not accepted.",
        PERMISSION="The job may not do that here.",
        NOT_FOUND="A file the job needs is not there.",
        PROGRAM_MISSING="A program could not be run.",
        PROGRAM_CRASHED="A program crashed on this input.",
        MISCONFIGURED="Something is set up in a way that cannot work.",
        UNSUPPORTED="What was asked for is not supported.",
        HTTP_IMPOSSIBLE="A service cannot do what was asked.",
        ALREADY_EXISTS="What the job wanted to make is already there.",
        DATABASE_BROKEN="The database's file is damaged.",
        DATABASE_SCHEMA="The database has another shape than the job expects.",
        MAIL_REFUSED="The mail server refused the message.",
        ADDRESS_REFUSED="Messages must not be sent to this address.",
        RECEIVER_GONE="The receiver of a message is gone for good.",
        REFUSED="The job asked for something that was refused.",
        KIND_UNKNOWN="No worker knows jobs of this kind.",
        DEADLINE_PASSED="The job's deadline passed.",
        RESULT_NOT_JSON="The job's result could not be stored.",
        RESULT_TOO_LARGE="The job's result could not be stored.",
        BAD_OUTCOME="The job's code asked for something impossible.",
        HOLD_UNKNOWN_DEPENDENCY="The job's code tried to hold a dependency that the job does not use.",
        SNOOZE_LIMIT="The job put itself off too often.",
        OUTCOME_REFUSED="The job ended, but its outcome could not be recorded.",
    ),
    **_codes(
        Cls.CANCELLED,
        CANCELLED="The job was cancelled.",
        STOPPED="The work was stopped because somebody asked for it.",
        TASK_CANCELLED="The job's code was cancelled from within.",
    ),
    **_codes(
        Cls.UNKNOWN,
        UNKNOWN_ERROR="The job failed for a reason that is not known yet.",
        PROCESS_FAILED="A program failed.",
        PROCESS_CRASHED="A program crashed.",
        PROCESS_DIED="The process of this job died.",
        HANDLER_EXIT="The job's code asked its process to exit.",
        REMOTE_ERROR="A service failed without saying why.",
        UNREPORTED="The job failed without saying why.",
    ),
}
