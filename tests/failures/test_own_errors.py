"""Errors of Mulligan itself: known by their type, whatever their text says."""

from __future__ import annotations

import pytest

from mulligan.core import errors
from mulligan.core.attempt import Cls
from mulligan.failures.capture import capture
from mulligan.failures.classify import classify_facts

# Texts that match rules about texts.
TEXTS = ("cannot find the file", "invalid value", "permission denied", "the schema is newer")
OWN_ERRORS = sorted(
    (
        error
        for error in vars(errors).values()
        if isinstance(error, type)
        and issubclass(error, errors.MulliganError)
        and error not in {errors.MulliganError, errors.ProcessFailed}
    ),
    key=lambda error: error.__name__,
)


def classified(error):
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - raised above
        return classify_facts(capture(caught, 0.0))


@pytest.mark.parametrize("error", OWN_ERRORS)
@pytest.mark.parametrize("text", TEXTS)
def test_an_error_of_ours_is_never_judged_by_its_text(error, text):
    error = errors.NoResult(text, job=None) if error is errors.NoResult else error(text)
    assert classified(error).rule.startswith("mulligan.")


def test_a_schema_error_is_transient():
    failure = classified(errors.SchemaError("the schema is newer; cannot continue"))
    assert (failure.code, failure.cls, failure.rule) == ("SCHEMA", Cls.TRANSIENT, "mulligan.schema")


def test_a_schema_error_is_found_below_the_error_of_a_handler():
    error = RuntimeError("cannot save the order: invalid configuration")
    error.__cause__ = errors.SchemaError("the schema is newer")
    assert classified(error).rule == "mulligan.schema"


def test_a_wait_that_timed_out_is_no_outage_of_the_database():
    assert classified(errors.WaitTimeout("still queued after 1 s")).code == "TIMEOUT"
