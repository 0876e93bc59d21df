"""Damaged sources: a permanent failure, never a copy that lacks a part."""

from __future__ import annotations

import random
import subprocess
import threading
from pathlib import Path

import pytest

from mulligan.apps.watermark import data, marks
from support.waiting import until

DAMAGED = "The video file is damaged and cannot be processed. Please upload it again."
SECONDS = 4


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> dict[str, bytes]:
    """Make a film with sound in each container. MP4 has its index in front, as on the web."""
    folder = tmp_path_factory.mktemp("films")
    picture = f"testsrc2=duration={SECONDS}:size=160x96:rate=25"
    inputs = ["-f", "lavfi", "-i", picture, "-f", "lavfi", "-i", f"sine=duration={SECONDS}"]
    options = ["-preset", "ultrafast", "-g", "25", "-b:v", "1M"]
    films = {}
    for container, more in {"mp4": ["-movflags", "+faststart"], "mkv": []}.items():
        file = folder / f"film.{container}"
        command = [marks.find_ffmpeg(), "-loglevel", "error", *inputs, *options, *more, str(file)]
        subprocess.run(command, check=True)
        films[container] = file.read_bytes()
    return films


def assert_refused(world, campaign: str) -> None:
    token, job = world.token(campaign), world.job(campaign)
    assert (token.status, token.error) == ("FAILED", DAMAGED)
    assert (job.attempts, job.error["code"]) == (1, "CORRUPT_SOURCE")
    assert world.state(campaign) == "FAILED"
    assert not data.copy_of(token.id).exists()


def publish(world, content: bytes) -> str:
    return world.publish(world.campaign("ada", asset=world.asset(content)))


@pytest.mark.any_store
@pytest.mark.seed("000-06", "000-101")
@pytest.mark.parametrize(
    "tenths", [(1, 5, 9), pytest.param((2, 3, 4, 6, 7, 8), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_film_whose_end_is_missing_is_refused(world, films, container, tenths):
    content = films[container]
    campaigns = [publish(world, content[: len(content) * tenth // 10]) for tenth in tenths]
    world.mulligan.drain()
    for campaign in campaigns:
        assert_refused(world, campaign)  # 000-06, 000-101


@pytest.mark.any_store
@pytest.mark.seed("000-06")
@pytest.mark.parametrize("size", [200, 5_000, 100_000])
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_film_with_noise_in_the_middle_is_refused(world, films, container, size):
    content = bytearray(films[container])
    middle = len(content) // 2
    content[middle : middle + size] = random.Random(7).randbytes(size)
    campaign = publish(world, bytes(content))
    world.mulligan.drain()
    assert_refused(world, campaign)


@pytest.mark.any_store
@pytest.mark.seed("000-06")
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_film_that_is_truncated_while_it_is_encoded_is_refused(world, films, container, tool):
    tool(
        'case "$*" in *yuv4mpegpipe\\ pipe:1*) exec "$FFMPEG" -re "$@";; esac; exec "$FFMPEG" "$@"'
    )
    asset = world.asset(films[container])
    campaign = world.publish(world.campaign("ada", asset=asset))
    drain = threading.Thread(target=world.mulligan.drain)
    drain.start()
    until(lambda: world.token(campaign).percent > 0, 60, "the first frames")
    with Path(asset.path).open("r+b") as file:
        file.truncate(len(films[container]) * 6 // 10)
    drain.join()
    assert_refused(world, campaign)


@pytest.mark.any_store
def test_whole_films_become_whole_copies_with_their_marks(world, films):
    for content in films.values():
        campaign = publish(world, content)
        world.mulligan.drain()
        token = world.token(campaign)
        copy = data.copy_of(token.id)
        assert token.status == "ACTIVE"
        assert marks.measure_seconds(copy) == pytest.approx(SECONDS, abs=0.1)
        assert sum(1 for _ in marks.Video(copy).frames()) == SECONDS * 25
        with data.transaction(str(world.mulligan.app.settings.database_url)) as session:
            assert marks.detect(copy) == session.get_one(data.Token, token.id).mark


@pytest.mark.any_store
def test_film_without_sound_is_copied(world, tmp_path):
    file = tmp_path / "silent.mp4"
    picture = ["-f", "lavfi", "-i", "testsrc2=duration=1:size=160x96:rate=10"]
    subprocess.run([marks.find_ffmpeg(), "-loglevel", "error", *picture, str(file)], check=True)
    campaign = publish(world, file.read_bytes())
    world.mulligan.drain()
    assert world.token(campaign).status == "ACTIVE"


def test_mark_is_found_in_a_damaged_copy(films, tmp_path):
    source, copy = tmp_path / "film.mp4", tmp_path / "copy.mp4"
    source.write_bytes(films["mp4"])
    marks.embed(source, copy, "deadbeef", None)
    copy.write_bytes(copy.read_bytes()[:-20_000])
    assert marks.detect(copy) == "deadbeef"
