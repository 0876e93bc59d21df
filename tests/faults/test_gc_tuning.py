"""Garbage collection is rare, except after long jobs and with thresholds of the user."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from mulligan.worker.startup import (
    LOADING_THRESHOLDS,
    LONG_JOB,
    RUNNING_THRESHOLDS,
    collect_after,
    finish_loading,
    reduce_gc,
)


@pytest.fixture(autouse=True)
def restore_gc() -> Iterator[None]:
    before = gc.get_threshold()
    gc.disable()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)
    gc.enable()


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_loaded_objects_are_excluded_from_collections_which_run_less_often() -> None:
    gc.set_threshold(700, 10, 10)
    before = gc.get_freeze_count()
    finish_loading()
    assert gc.get_freeze_count() > before + 1000
    assert gc.get_threshold() == RUNNING_THRESHOLDS


def test_collections_are_rare_while_an_app_is_loaded() -> None:
    gc.set_threshold(700, 10, 10)
    reduce_gc()
    assert gc.get_threshold() == LOADING_THRESHOLDS
    finish_loading()
    assert gc.get_threshold() == RUNNING_THRESHOLDS


def test_thresholds_set_by_the_user_are_kept() -> None:
    gc.set_threshold(123, 4, 5)
    reduce_gc()
    finish_loading()
    assert gc.get_threshold() == (123, 4, 5)


@pytest.mark.parametrize(("seconds", "gone"), [(LONG_JOB, True), (LONG_JOB / 2, False)])
def test_reference_cycles_of_a_long_job_are_collected_when_it_ends(
    seconds: float, gone: bool
) -> None:
    left = weakref.ref(Cycle())
    collect_after(seconds)
    assert (left() is None) is gone
