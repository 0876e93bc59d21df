"""Garbage in circles: looked for rarely, but not where somebody chose, and at once after what took long."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from mulligan.worker.startup import LOADING, LONG, OFTEN, clear_after, load_quickly, settle_down


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    gc.disable()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)
    gc.enable()


class Circle:
    def __init__(self) -> None:
        self.me = self


def test_what_is_loaded_is_never_looked_at_again_and_the_rest_more_rarely() -> None:
    gc.set_threshold(700, 10, 10)
    before = gc.get_freeze_count()
    settle_down()
    assert gc.get_freeze_count() > before + 1000
    assert gc.get_threshold() == OFTEN


def test_while_an_app_is_loaded_it_is_hardly_looked_at_all() -> None:
    gc.set_threshold(700, 10, 10)
    load_quickly()
    assert gc.get_threshold() == LOADING
    settle_down()
    assert gc.get_threshold() == OFTEN


def test_whoever_has_chosen_how_often_to_look_keeps_it() -> None:
    gc.set_threshold(123, 4, 5)
    load_quickly()
    settle_down()
    assert gc.get_threshold() == (123, 4, 5)


@pytest.mark.parametrize(("seconds", "gone"), [(LONG, True), (LONG / 2, False)])
def test_what_a_long_job_left_in_a_circle_is_gone_when_it_has_ended(
    seconds: float, gone: bool
) -> None:
    left = weakref.ref(Circle())
    clear_after(seconds)
    assert (left() is None) is gone
